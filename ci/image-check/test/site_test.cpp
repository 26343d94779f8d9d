// Site files: what they change, and what is wrong with them.
#include "site.hpp"

#include <multinode/options.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace image_check::site_test {

using multinode::testing::TemporaryFolder;

class SiteFile : public ::testing::Test {
 protected:
  Site read(const std::string& text) {
    folder_.write("site.json", text);
    return read_site(folder_ / "site.json");
  }
  std::string error(const std::string& text) {
    try {
      read(text);
    } catch (const multinode::UsageError& wrong) {
      return wrong.what();
    }
    return "nothing is wrong";
  }
  static const Check& named(const Site& site, std::string_view name) {
    const auto at =
        std::find_if(site.checks.begin(), site.checks.end(), [&](const auto& check) { return check.name == name; });
    if (at == site.checks.end()) throw std::logic_error("no check " + std::string(name));
    return *at;
  }
  // What judge() says of a run of `check` with that output.
  Judged judged(const Check& check, const std::string& output, const std::string& json = "") {
    std::ofstream(folder_ / "log") << output;
    std::ofstream(folder_ / "json") << json;
    return judge(check, {.launcher = "mpirun", .nodes = {"gpu1"}, .examples = "/"}, {}, folder_ / "log",
                 folder_ / "json", {});
  }
  TemporaryFolder folder_;
};

TEST_F(SiteFile, TheBuiltInChecks) {
  const Site site = read_site("");
  EXPECT_GT(site.checks.size(), 100U);
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
            {"name": "pairs", "limit": 300},
            {"name": "scratch", "suite": "smoke", "command": "findmnt -t lustre /scratch", "where": "every node",
             "action": "drain the node"}]})");
  EXPECT_EQ(site.launcher, "srun --mpi=pmi2");
  EXPECT_EQ(site.processes_per_node, 8);
  EXPECT_EQ(site.exclude, std::vector<std::string>{"node7"});
  EXPECT_EQ(site.budgets.at("smoke"), 90);
  EXPECT_EQ(named(site, "training").from, Suite::none);
  EXPECT_EQ(named(site, "training").says.size(), 1U);
  EXPECT_EQ(named(site, "pairs").limit, 300);
  const auto& own = named(site, "scratch");
  EXPECT_EQ(own.program, "/bin/sh");
  EXPECT_EQ(own.arguments, (std::vector<std::string>{"-c", "findmnt -t lustre /scratch"}));
  EXPECT_EQ(own.where, Where::one_each);
  EXPECT_EQ(own.action, Action::drain);
}

TEST_F(SiteFile, ThresholdsAreOfAKindOfNodes) {
  const char* const kinds = R"({"kinds": [{"nodes": "gpu[0-9]+", "at_least": {"disk": 5}, "at_most": {"disk": 9}},
                                          {"nodes": "cpu.*", "at_least": {"disk": 50}}],
    "checks": [{"name": "disk", "suite": "gate", "command": "fio x",
                "measures": {"pattern": "bw=([0-9.]+)GB/s", "metric": "disk", "unit": "GB/s", "better": "more"}}]})";
  const Site site = read(kinds);
  const auto& check = named(site, "disk");
  const auto right = judged(check, "read: bw=7.5GB/s\nread: bw=8GB/s\n");
  EXPECT_TRUE(right.findings.empty());
  ASSERT_EQ(right.samples.size(), 2U);
  EXPECT_EQ(right.samples[0].value, 7.5);
  EXPECT_EQ(right.samples[0].metric, "disk");
  const auto slow = judged(check, "bw=4GB/s");
  ASSERT_EQ(slow.findings.size(), 1U);
  EXPECT_EQ(slow.findings[0].detector, "threshold");
  EXPECT_EQ(slow.findings[0].text, "gpu1: disk is 4 GB/s, and the site file wants at least 5");
  EXPECT_EQ(judged(check, "bw=10GB/s").findings.at(0).text, "gpu1: disk is 10 GB/s, and the site file wants at most 9");
  EXPECT_EQ(judged(check, "no bandwidth").findings.at(0).detector, "results");
}

TEST_F(SiteFile, ThresholdsOfOneSize) {
  const Site site = read(R"({"kinds": [{"nodes": ".*", "at_least": {"all_reduce bus bandwidth, mpi, 1 MiB": 5}}]})");
  const auto row = [](const char* size) {
    return R"({"busbw_gb_per_s": 4, "time_us": 1, "median_us": 1, "in_place": false, "collective": "all_reduce", )"
           R"("backend": "mpi", "size_bytes": )" +
           std::string(size) + "}\n";
  };
  const std::string fine = "Out of bounds values : 0 OK";
  EXPECT_TRUE(judged(named(site, "all_reduce, mpi"), fine, row("4096")).findings.empty());
  EXPECT_SAYS(judged(named(site, "all_reduce, mpi"), fine, row("1048576")).findings.at(0).text,
              "all_reduce bus bandwidth, mpi, 1 MiB is 4 GB/s");
}

TEST_F(SiteFile, EachCombinationIsACheck) {
  const Site site = read(R"({"checks": [{"each": [[{"disk": "a"}, {"disk": "b"}], [{"mode": "r", "limit": 60}]],
    "name": "fio {disk} {mode}", "suite": "deep", "command": "fio /{disk} --{mode}"}]})");
  EXPECT_EQ(named(site, "fio a r").arguments[1], "fio /a --r");
  EXPECT_EQ(named(site, "fio b r").limit, 60);
}

TEST_F(SiteFile, ErrorsNameTheFileAndTheCheck) {
  EXPECT_SAYS(error("{"), "site.json: ");
  EXPECT_SAYS(error(R"({"check": []})"), "site.json: unknown member 'check'");
  EXPECT_SAYS(error(R"({"budgets": {"tiny": 3}})"), "'tiny' is none of smoke, gate, deep");
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
  EXPECT_THROW(read_site("/nowhere"), multinode::UsageError);
}

}  // namespace image_check::site_test
