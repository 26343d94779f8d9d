#include "explore/comparison.hpp"

#include <multinode/base/check.hpp>
#include <test/support/json_lines.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <map>

namespace explore_comparison_test {

using explore::Processes;
using nlohmann::json;

// Processes of `nodes` nodes with `each` processes; hosts are a, b, c ...
Processes made_up(int nodes, int each) {
  Processes all;
  for (int node = 0; node < nodes; ++node)
    for (int local = 0; local < each; ++local)
      all.push_back({{"rank", all.size()},
                     {"node", node},
                     {"host", std::string(1, char('a' + node))},
                     {"versions", {{"kernel", "6.1.0-12"}, {"libc", "2.36"}}},
                     {"cpu", {{"allowed", "0-3"}, {"count", 4}}},
                     {"threads", {{"openmp", 1}}},
                     {"limits", {{"memlock_bytes", nullptr}, {"open_files", 1024}}}});
  return all;
}

explore::Item item(std::string_view name) { return explore::parse_items(name).front(); }

TEST(Comparison, OddRanksAndNodesAreNamed) {
  const struct {
    int nodes, each;
    std::map<std::size_t, std::string> kernels;  // of ranks that do not have 6.1.0-12; "": none
    std::string text;
  } cases[] = {
      {1, 1, {}, "all have 6.1.0-12"},
      {2, 2, {}, "all have 6.1.0-12"},
      {3, 2, {{2, "13"}, {3, "13"}}, "node 1 (host b) has 13, the others 6.1.0-12"},
      {2, 2, {{3, "13"}}, "rank 3 (host b) has 13, the others 6.1.0-12"},
      {3, 1, {{0, "13"}}, "node 0 (host a) has 13, the others 6.1.0-12"},
      {3, 1, {{1, ""}}, "node 1 (host b) has none, the others 6.1.0-12"},
      {4, 1, {{1, "13"}, {3, "13"}}, "nodes 0,2 (hosts a, c) have 6.1.0-12, nodes 1,3 (hosts b, d) have 13"},
      {11,
       1,
       {{0, "13"}, {1, "13"}, {2, "13"}, {3, "13"}, {4, "13"}},
       "nodes 0-4 (hosts a, b, c, d and 1 more) have 13, the others 6.1.0-12"},
      {9,
       1,
       {{2, "22"}, {3, "23"}, {4, "24"}, {5, "25"}, {6, "26"}, {7, "27"}, {8, "28"}},
       "node 2 (host c) has 22, node 3 (host d) has 23, node 4 (host e) has 24, node 5 (host f) has 25, and there are "
       "3 other values; most have 6.1.0-12"},
  };
  for (const auto& [nodes, each, kernels, text] : cases) {
    Processes all = made_up(nodes, each);
    for (const auto& [rank, kernel] : kernels) all[rank]["versions"]["kernel"] = kernel.empty() ? json() : json(kernel);
    EXPECT_EQ(explore::describe(all, item("kernel")), "kernel: " + text);
  }
}

TEST(Comparison, DifferencesHaveTheirRanksAndHosts) {
  Processes all = made_up(3, 2);
  EXPECT_EQ(explore::differences(all), json::array());
  for (const std::size_t rank : {2u, 3u}) all[rank]["versions"]["kernel"] = "6.1.0-13";
  EXPECT_EQ(explore::differences(all), (json{{{"item", "kernel"},
                                              {"groups",
                                               {{{"value", "6.1.0-12"}, {"ranks", {0, 1, 4, 5}}, {"hosts", {"a", "c"}}},
                                                {{"value", "6.1.0-13"}, {"ranks", {2, 3}}, {"hosts", {"b"}}}}}}}));
}

TEST(Comparison, EveryItemFindsAValueThatDiffers) {
  Processes all = made_up(2, 1);
  all[1] = multinode::parse_json(R"({
    "node": 1, "host": "b", "launcher": "x", "folder": "x", "priority": "x", "memory_bytes": 1,
    "versions": {"program": "x", "MPI": "x", "Gloo": "x", "NCCL": "x", "CUDA": "x", "libc": "x", "kernel": "x", "system": "x"},
    "gpus": {"driver": "x", "devices": [{"name": "x"}]}, "container": [{"kind": "x"}],
    "cpu": {"count": 1, "machine": {"model": "x"}}, "threads": {"openmp": 7},
    "rdma": [{"device": "x"}], "network": [{"name": "x", "state": "up", "addresses": ["x"]}],
    "limits": {"memlock_bytes": 1, "open_files": 1, "shm_bytes": 1}, "cgroup": {"cpus": 1, "memory_bytes": 1}})");
  for (const explore::Item& i : explore::items())
    EXPECT_EQ(explore::groups(all, i).size(), 2u) << i.name << ": " << explore::describe(all, i);
}

TEST(Items, AreParsedStrictly) {
  const std::vector<explore::Item> two = explore::parse_items("kernel,memlock");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[1].name, "memlock");
  for (const char* wrong : {"", ",", "Kernel", "kernel memlock", "colour"})
    EXPECT_THROW(explore::parse_items(wrong), multinode::UsageError) << wrong;
  const std::string what =
      multinode::testing::error_text<multinode::UsageError>([] { explore::parse_items("kernel,colour"); });
  EXPECT_SAYS(what, "'colour'");
  for (const explore::Item& i : explore::items()) EXPECT_SAYS(what, i.name);
}

json thing(const char* kind, const char* name, bool found) {
  return {{"kind", kind},
          {"name", name},
          {"found", found ? json("/usr/bin/x") : json()},
          {"problem", found ? json() : json("not on the PATH")}};
}

TEST(Missing, SaysOnWhichNodes) {
  Processes all = made_up(2, 2);
  for (std::size_t rank = 0; rank < 4; ++rank)
    all[rank]["required"] = {thing("command", "tool", rank < 2), thing("file", "/etc/x", true),
                             thing("library", "liby.so", false)};
  EXPECT_EQ(explore::missing(all),
            (std::vector<std::string>{"command tool is missing on node 1 (host b) only: not on the PATH",
                                      "library liby.so is missing everywhere: not on the PATH"}));
  EXPECT_TRUE(explore::missing(made_up(2, 2)).empty());
}

TEST(Oversubscribed, ThreadsOfANodeAgainstItsCpus) {
  Processes all = made_up(2, 2);
  EXPECT_TRUE(explore::oversubscribed(all).empty());
  for (const std::size_t rank : {2u, 3u}) all[rank]["threads"]["openmp"] = 4;
  EXPECT_EQ(explore::oversubscribed(all),
            (std::vector<std::string>{"node 1 (host b): 2 processes would start 8 OpenMP threads "
                                      "on 4 CPUs: set OMP_NUM_THREADS=2"}));
  all[2]["cpu"]["allowed"] = "0-3";
  all[3]["cpu"]["allowed"] = "4-7";  // bound to other CPUs
  EXPECT_TRUE(explore::oversubscribed(all).empty());
  for (const std::size_t rank : {2u, 3u}) {
    all[rank]["cgroup"]["cpus"] = 1.5;  // the CPU set does not show the quota
    all[rank]["threads"]["openmp"] = 1;
  }
  EXPECT_EQ(explore::oversubscribed(all),
            (std::vector<std::string>{"node 1 (host b): 2 processes would start 2 OpenMP threads "
                                      "on 1.5 CPUs: start fewer processes"}));
}

TEST(Crowded, IsANodeThatHasMoreCpusThanItsProcessesMayUse) {
  Processes all = made_up(2, 2);
  for (json& process : all) process["cpu"]["machine"]["cpus"] = 4;
  EXPECT_TRUE(explore::crowded(all).empty());
  for (const std::size_t rank : {2u, 3u}) all[rank]["cpu"]["allowed"] = "3";
  EXPECT_EQ(explore::crowded(all).size(), 1U);
  EXPECT_SAYS(explore::crowded(all).at(0), "node 1 (host b): 2 processes share 1 of its 4 CPUs: look at taskset");
  all[2]["cpu"]["allowed"] = "2";  // bound to other CPUs
  EXPECT_TRUE(explore::crowded(all).empty());
  for (const std::size_t rank : {2u, 3u}) all[rank]["cgroup"]["cpus"] = 1.5;
  EXPECT_SAYS(explore::crowded(all).at(0), "2 processes share 1.5 of its 4 CPUs");
  for (const std::size_t rank : {2u, 3u}) all[rank]["cpu"]["machine"]["cpus"] = 1;  // it has no more
  EXPECT_TRUE(explore::crowded(all).empty());
}

TEST(Late, IsWhoTheOthersWaitedForUnlessItWaitedForACpu) {
  Processes all = made_up(2, 2);
  const double waited[] = {2.2, 2.1, 0.1, 1.3};
  for (std::size_t rank = 0; rank < 4; ++rank) all[rank]["waited_seconds"] = waited[rank];
  EXPECT_EQ(explore::late(all, 1), (std::vector<std::string>{"rank 2 (host b) started 2.1 s after the first one"}));
  all[2]["cpu_wait_seconds"] = 1.5;
  EXPECT_TRUE(explore::late(all, 1).empty());
}

TEST(Bytes, InBinaryUnits) {
  EXPECT_EQ(explore::bytes_or(0, ""), "0 B");
  EXPECT_EQ(explore::bytes_or(65536, ""), "64 KiB");
  EXPECT_EQ(explore::bytes_or(8 << 20, ""), "8 MiB");
  EXPECT_EQ(explore::bytes_or(23.54 * 1024 * 1024 * 1024, ""), "23.5 GiB");
}

}  // namespace explore_comparison_test
