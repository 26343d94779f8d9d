// Site files: what they change, and what is wrong with them.
#include "site.hpp"

#include <multinode/base/options.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>

namespace image_check::site_test {

using multinode::testing::TemporaryFolder;

class SiteFile : public ::testing::Test {
 protected:
  Site read(const std::string& text) {
    folder_.write("site.json", text);
    return read_site(folder_ / "site.json");
  }
  std::string error(const std::string& text) {
    return multinode::testing::error_text<multinode::UsageError>([&] { read(text); });
  }
  static const Check& named(const Site& site, std::string_view name) {
    const auto at = std::ranges::find(site.checks, name, &Check::name);
    if (at == site.checks.end()) throw std::logic_error("no check " + std::string(name));
    return *at;
  }
  TemporaryFolder folder_;
};

TEST_F(SiteFile, TheBuiltInChecks) {
  const Site site = read_site("");
  EXPECT_GT(site.checks.size(), 50U);
  const auto& curve = named(site, "all_reduce, mpi");
  EXPECT_EQ(curve.from, Suite::smoke);
  EXPECT_EQ(curve.seconds, 3);
  EXPECT_EQ(curve.program, "02-mpi/all_reduce_perf");
  EXPECT_EQ(curve.arguments, "--backend mpi --sweep -b 16 -e 4M -f 4 {common}");
  EXPECT_EQ(named(site, "sendrecv, gloo").from, Suite::gate);
  const auto& large = named(site, "all_reduce, nccl, large");
  EXPECT_EQ(large.arguments, "--backend nccl --sweep -b 8M -e 1G -f 2 {common}");
  EXPECT_EQ(large.needs, (std::vector<Need>{Need::gpu, Need::several_processes}));
  EXPECT_EQ(large.seconds, 20);
  EXPECT_TRUE(named(site, "all_reduce, mpi, every type").measures.is_null());
}

TEST_F(SiteFile, ChangesBuiltInChecksAndAddsItsOwn) {
  const Site site = read(R"(// our cluster
{"launcher": "srun --mpi=pmi2",
 "checks": [{"name": "training", "suite": "none"},
            {"name": "paths", "limit": 300},
            {"name": "scratch", "suite": "smoke", "command": "findmnt -t lustre /scratch", "where": "every node",
             "action": "drain the node"}]})");
  EXPECT_EQ(site.launcher, "srun --mpi=pmi2");
  EXPECT_EQ(named(site, "training").from, Suite::none);
  EXPECT_EQ(named(site, "training").says.size(), 1U);
  EXPECT_EQ(named(site, "paths").limit, 300);
  const auto& own = named(site, "scratch");
  EXPECT_EQ(own.program, "/bin/sh");
  EXPECT_EQ(own.command, "findmnt -t lustre /scratch");
  EXPECT_EQ(own.where, Where::one_each);
  EXPECT_EQ(own.action, Action::drain);
}

TEST_F(SiteFile, KindsSayWhatANodeHasAndMustMeasure) {
  const Site site = read(R"({"kinds": [{"nodes": ".*", "inventory": {"mounts": ["/home"], "gpus": 0}},
    {"nodes": "gpu[0-9]+", "inventory": {"gpus": 8},
     "at_least": {"memory_bandwidth": 200, "all_reduce bus bandwidth, mpi, 1 MiB": 1}}]})");
  EXPECT_EQ(inventory_of(site, "gpu7").dump(), R"({"gpus":8,"mounts":["/home"]})");
  EXPECT_EQ(inventory_of(site, "cpu7").at("gpus"), 0);
  EXPECT_EQ(named(site, "node").thresholds.size(), 1U);
  EXPECT_EQ(named(site, "node").thresholds[0].metric, "memory_bandwidth");
  EXPECT_EQ(named(site, "all_reduce, mpi").thresholds.size(), 1U);
  EXPECT_TRUE(named(site, "sendrecv, mpi").thresholds.empty());
  const Site gpus = read(R"({"kinds": [{"nodes": "gpu[0-9]+"}]})");
  EXPECT_SAYS(multinode::testing::error_text<multinode::UsageError>([&] { inventory_of(gpus, "gn01"); }),
              "no member of 'kinds' matches the node 'gn01'");
  for (const auto& [inventory, what] :
       {std::pair{R"("gpu_count": 8)", "inventory: unknown member 'gpu_count'"},
        {R"("gpus": -1)", "inventory: 'gpus' cannot be -1"},
        {R"("gpus": "8")", "inventory: 'gpus' cannot be \"8\""},
        {R"("mounts": "/home")", "'mounts' cannot be"},
        {R"("driver": "(")", "site.json: "},
        {R"(}, "at_least": {"memory_bandwith": 9)", "no check measures 'memory_bandwith'"}})
    EXPECT_SAYS(error(std::string(R"({"kinds": [{"nodes": ".*", "inventory": {)") + inventory + "}}]}"), what);
}

// What was measured on good nodes becomes what all nodes like them must have.
TEST_F(SiteFile, IsMadeFromGoodNodes) {
  Results good;
  good.complete = true;
  good.head.nodes = {"n1", "n.2"};
  for (const auto& [node, memory] : {std::pair{"n1", "64.0"}, std::pair{"n.2", "60.0"}})
    for (const auto& [name, value] : std::map<std::string, std::string>{
             {"cpus", "8"},
             {"memory", memory},
             {"mounts", "/home, /scratch"},
             {"gpus", "NVIDIA H100 80GB HBM3 79.11 GiB, NVIDIA H100 80GB HBM3 79.11 GiB"},
             {"rdma_ports", "mlx5_0/1 ACTIVE 400 Gb/sec, mlx5_1/1 DOWN 400 Gb/sec"}})
      good.facts.push_back({"node", name, value, node});
  good.samples = {{"node", "memory_bandwidth", -1, "GB/s", "more", 200, 0, "n1"},
                  {"node", "memory_bandwidth", -1, "GB/s", "more", 100, 0, "n.2"},
                  {"node", "clock_skew", -1, "ms", "less", 7, 0, "n1"},
                  {"pi, bit for bit", "pi, 200 million intervals", -1, "s", "less", 7, 0, ""},
                  {"all_reduce, mpi", "all_reduce bus bandwidth, mpi", 1024, "GB/s", "more", 1, 0, ""},
                  {"all_reduce, mpi", "all_reduce bus bandwidth, mpi", 1 << 20, "GB/s", "more", 10, 0, ""}};
  const Site site = read(site_file({good, good}));
  ASSERT_EQ(site.kinds.size(), 1U);
  EXPECT_EQ(
      inventory_of(site, "n.2").dump(),
      R"({"cpus":8,"gpu":"NVIDIA H100 80GB HBM3","gpus":2,"memory_gib":58,"mounts":["/home","/scratch"],"rdma_ports":1})");
  EXPECT_THROW(inventory_of(site, "nx2"), multinode::UsageError);
  ASSERT_EQ(named(site, "node").thresholds.size(), 1U);
  EXPECT_EQ(named(site, "node").thresholds[0].value, 70);
  EXPECT_EQ(named(site, "pi, bit for bit").thresholds.at(0).value, 10);
  EXPECT_EQ(named(site, "all_reduce, mpi").thresholds.at(0).metric, "all_reduce bus bandwidth, mpi, 1 MiB");
  EXPECT_EQ(named(site, "all_reduce, mpi").thresholds.at(0).value, 7);
  for (const auto& [name, value] :
       {std::pair{"cpus", std::string(300'000, '[')}, {"cpus", "-1"}, {"memory", "1e999"}, {"memory", "nan"}}) {
    Results strange = good;
    strange.facts.push_back({"node", name, value, "n1"});
    EXPECT_SAYS(multinode::testing::error_text<multinode::UsageError>([&] { site_file({strange}); }),
                std::string("site: ") + name + " of a node is '" + value.substr(0, 60));
  }
  good.summary.exit_status = 1;
  EXPECT_THROW(site_file({good}), multinode::UsageError);
}

TEST_F(SiteFile, ErrorsNameTheFileAndTheCheck) {
  EXPECT_SAYS(error("{"), "site.json: ");
  EXPECT_SAYS(error(R"({"launcher": 3})"), "must be string");
  const auto own = [&](const std::string& members) {
    return error(R"({"checks": [{"name": "x", "suite": "gate", )" + members + "}]}");
  };
  EXPECT_SAYS(own(R"("titel": "y", "command": "true")"), "check 'x': unknown member 'titel'");
  EXPECT_SAYS(own(R"("title": "y")"), "check 'x': needs a program or a command");
  EXPECT_SAYS(own(R"("command": "true", "needs": ["gpus"])"), "check 'x': 'gpus' is none of mpi");
  EXPECT_SAYS(own(R"("command": "true", "says": ["("])"), "check 'x': ");
  EXPECT_SAYS(own(R"("command": "true", "limit": 0.5)"), "seconds must be more than 0, and no more than limit");
  EXPECT_SAYS(own(R"("command": "true", "measures": {"metric": "m", "unit": "s", "better": "less"})"),
              "measures needs a value or a pattern");
}

}  // namespace image_check::site_test
