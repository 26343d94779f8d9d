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
  EXPECT_GT(site.checks.size(), 90U);
  const auto& curve = named(site, "all_reduce, mpi");
  EXPECT_EQ(curve.from, Suite::smoke);
  EXPECT_EQ(curve.seconds, 2);
  EXPECT_EQ(curve.program, "02-mpi/all_reduce_perf");
  EXPECT_EQ(shell_words({}, curve.arguments), "--backend mpi --sweep -b 16 -e 4M -f 4 '{common}'");
  EXPECT_EQ(named(site, "sendrecv, gloo").from, Suite::gate);
  const auto& large = named(site, "all_reduce, nccl, large");
  EXPECT_EQ(shell_words({}, large.arguments), "--backend nccl --sweep -b 8M -e 1G -f 2 '{common}'");
  EXPECT_EQ(large.needs, (std::vector<Need>{Need::gpu, Need::several_processes}));
  EXPECT_EQ(large.seconds, 30);
  EXPECT_FALSE(named(site, "all_reduce, mpi, every type").measures);
}

TEST_F(SiteFile, ChangesBuiltInChecksAndAddsItsOwn) {
  const Site site = read(R"(// our cluster
{"launcher": "srun --mpi=pmi2", "processes_per_node": 8, "exclude": ["node7"], "budgets": {"smoke": 90},
 "checks": [{"name": "training", "suite": "none"},
            {"name": "paths", "limit": 300},
            {"name": "scratch", "suite": "smoke", "command": "findmnt -t lustre /scratch", "where": "every node",
             "action": "drain the node"}]})");
  EXPECT_EQ(site.launcher, "srun --mpi=pmi2");
  EXPECT_EQ(site.processes_per_node, 8);
  EXPECT_EQ(site.exclude, std::vector<std::string>{"node7"});
  EXPECT_EQ(site.budgets.at("smoke"), 90);
  EXPECT_EQ(named(site, "training").from, Suite::none);
  EXPECT_EQ(named(site, "training").says.size(), 1U);
  EXPECT_EQ(named(site, "paths").limit, 300);
  const auto& own = named(site, "scratch");
  EXPECT_EQ(own.program, "/bin/sh");
  EXPECT_EQ(own.arguments, (std::vector<std::string>{"-c", "findmnt -t lustre /scratch"}));
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
  for (const auto& [inventory, what] : {std::pair{R"("gpu_count": 8)", "inventory: unknown member 'gpu_count'"},
                                        {R"("gpus": -1)", "inventory: 'gpus' cannot be -1"},
                                        {R"("gpus": "8")", "inventory: 'gpus' cannot be \"8\""},
                                        {R"("ecc": 1)", "inventory: 'ecc' cannot be 1"},
                                        {R"("mounts": "/home")", "must be array"},
                                        {R"("driver": "(")", "site.json: "}})
    EXPECT_SAYS(error(std::string(R"({"kinds": [{"nodes": ".*", "inventory": {)") + inventory + "}}]}"), what);
}

TEST_F(SiteFile, ErrorsNameTheFileAndTheCheck) {
  EXPECT_SAYS(error("{"), "site.json: ");
  EXPECT_SAYS(error(R"({"budgets": {"tiny": 3}})"), "'tiny' is none of smoke, gate, deep");
  EXPECT_SAYS(error(R"({"budgets": {"smoke": -90}})"), "budgets must be from 1");
  EXPECT_SAYS(error(R"({"budgets": {"smoke": NaN}})"), "parse error");
  const auto own = [&](const std::string& members) {
    return error(R"({"checks": [{"name": "x", "suite": "gate", )" + members + "}]}");
  };
  EXPECT_SAYS(own(R"("titel": "y", "command": "true")"), "check 'x': unknown member 'titel'");
  EXPECT_SAYS(own(R"("title": "y")"), "check 'x': needs a program or a command");
  EXPECT_SAYS(own(R"("command": "true", "needs": ["gpus"])"), "check 'x': 'gpus' is not known here");
  EXPECT_SAYS(own(R"("command": "true", "says": ["("])"), "check 'x': ");
  EXPECT_SAYS(own(R"("command": "true", "limit": 0.5)"), "seconds must be more than 0, and no more than limit");
  EXPECT_SAYS(own(R"("command": "true", "measures": {"metric": "m", "unit": "s", "better": "less"})"),
              "measures needs a value or a pattern");
}

}  // namespace image_check::site_test
