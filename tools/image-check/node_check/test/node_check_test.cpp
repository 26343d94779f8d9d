// node_check as image-check runs it.
#include <test/support/emulated_gpu.hpp>
#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

namespace node_check_test {

using namespace multinode::testing;
using nlohmann::json;

std::vector<json> with(const std::vector<json>& lines, const char* what) {
  std::vector<json> found;
  std::ranges::copy_if(lines, std::back_inserter(found),
                       [&](const json& line) { return line.value("what", "") == what; });
  return found;
}

std::vector<std::string> command(std::vector<std::string> options) {
  options.insert(options.begin(), PATH_node_check);
  return options;
}

TEST(NodeCheckProgram, LooksAtEverything) {
  const TemporaryFolder folder;
  const Result result = run({PATH_mnrun, "--standalone", "--nproc-per-node", "2", PATH_node_check, "--seconds", "0.02",
                             "--json", folder / "result"});
  EXPECT_EQ(result.status, 0) << result.all();
  const std::vector<json> lines = json_lines(folder / "result");
  ASSERT_FALSE(lines.empty()) << result.all();
  EXPECT_EQ(lines[0].at("fingerprint").at("world_size"), 2);
  for (const char* what :
       {"memlock", "open_files", "processes", "core_size", "stack", "cpus", "memory", "shm_bytes", "interfaces",
        "rdma_ports", "gpus", "mounts", "memory_bandwidth", "matrix_rate", "clock_skew"})
    EXPECT_EQ(with(lines, what).size(), 1u) << what;
  for (const json& line : lines) {
    if (line.contains("fingerprint")) continue;
    EXPECT_TRUE(line.at("ok").is_null() || line.at("ok") == true) << line;
    EXPECT_TRUE(!line.at("ok").is_null() || !line.at("why").get<std::string>().empty()) << line;
    EXPECT_SAYS(result.out, line.at("what").get<std::string>());
  }
  const json skew = with(lines, "clock_skew").at(0);
  EXPECT_EQ(skew.at("rank"), 1);
  EXPECT_EQ(skew.at("value"), 0);  // one host has one clock
  EXPECT_EQ(skew.at("ok"), true);
  EXPECT_SAYS(result.out, "0 wrong");
}

// A user can fill a folder that is for all. No node is drained for that, but for a folder that is too small.
TEST(NodeCheckProgram, AFolderThatSomebodyFilledIsNoFaultOfTheNode) {
  const TemporaryFolder folder;
  const auto result_with = [&](const std::string& size, const std::string& filled) {
    return run({"unshare", "--user", "--map-root-user", "--mount", "sh", "-ec",
                "mount -t tmpfs -o size=$1 none \"$0\"; head -c $2 /dev/zero >\"$0/of a user\"; shift 2; exec \"$@\"",
                folder.path(), size, filled, PATH_node_check, "--only", "limits", "--tmp", folder.path(), "--json",
                "/dev/stdout"});
  };
  if (run({"unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "none", folder.path()}).status)
    GTEST_SKIP() << "no user namespaces here";
  const Result full = result_with("80m", "83886080"), small = result_with("4m", "1");
  EXPECT_EQ(full.status, 0) << full.all();
  EXPECT_SAYS(full.out, folder.path().string() + " is full, a file of 1 MiB has no room: somebody filled it");
  EXPECT_EQ(small.status, 1) << small.all();
  EXPECT_SAYS(small.err, "has only 0.00 GiB");
}

TEST(NodeCheckProgram, SeesWhatIsCorrupted) {
  const TemporaryFolder folder;
  const Result result =
      run({PATH_mnrun, "--standalone", "--nproc-per-node", "3", PATH_node_check, "--seconds", "0.02", "--corrupt", "2",
           "--only", "clock_skew", "--only", "limits", "--json", folder / "result"});
  EXPECT_EQ(result.status, 1) << result.all();
  const std::vector<json> skews = with(json_lines(folder / "result"), "clock_skew");
  ASSERT_EQ(skews.size(), 2u);
  EXPECT_EQ(skews[0].at("ok"), true);
  EXPECT_EQ(skews[1].at("ok"), false);
  EXPECT_NEAR(skews[1].at("value").get<double>(), 5000, 1000);
  EXPECT_SAYS(skews[1].at("why").get<std::string>(),
              skews[1].at("host").get<std::string>() + ": its clock is 5e+03 ms ahead");
  EXPECT_SAYS(result.err, "node_check: clock_skew: ");
  EXPECT_EQ(occurrences(result.err, "node_check: "), 1u) << result.err;
  const Result elements =
      run(command({"--seconds", "0", "--corrupt", "0", "--only", "memory_bandwidth", "--only", "matrix_rate"}));
  EXPECT_EQ(elements.status, 1) << elements.all();
  EXPECT_SAYS(elements.err, ": 1 of ");
  EXPECT_TRUE(occurrences(elements.out, "built without BLAS") > 0 ||
              occurrences(elements.err, ": element (0, 0) of a product is ") > 0)
      << elements.all();
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST(NodeCheckProgram, SeesTheReferenceBlas) {
  const char* const reference = "/usr/lib/x86_64-linux-gnu/blas/libblas.so.3";
  if (!std::filesystem::exists(reference)) GTEST_SKIP() << "no " << reference << ": install libblas3";
  const Result result = run(command({"--seconds", "0", "--only", "matrix_rate"}), {{"LD_PRELOAD", reference}});
  if (result.out.find("absent") != std::string::npos && result.status == 77) GTEST_SKIP() << "built without BLAS";
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.err, "/blas/libblas.so.3 is probably the reference BLAS; install OpenBLAS");
}
#endif

TEST(NodeCheckProgram, WhatIsNotHereIsNotRight) {
  const TemporaryFolder nothing;
  const Result result = run(command({"--only", "mounts", "--root", nothing.path()}));
  EXPECT_EQ(result.status, 77) << result.all();
  EXPECT_SAYS(result.out, "0 right, 0 wrong, 1 absent");
  EXPECT_EQ(run(command({"--only", "colour"})).status, 2);
}

#ifdef EMULATED_GPU

TEST(NodeCheckProgram, AGpuThatCudaCannotUseIsAFault) {
  auto environment = on_emulated_gpus(1);
  environment["EMULATED_GPU_FAULT"] = "device:802";
  const Result result = run(command({"--only", "devices"}), environment);
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.all(), "cudaErrorSystemNotReady");
}

#endif

}  // namespace node_check_test
