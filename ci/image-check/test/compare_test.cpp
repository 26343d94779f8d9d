// Two results against each other.
#include "compare.hpp"

#include <multinode/options.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sstream>

namespace image_check::compare_test {

using multinode::testing::TemporaryFolder;

class CompareResults : public ::testing::Test {
 protected:
  // Results of three launches on nodes of these names, whose last node has so many GPUs and such a bandwidth.
  std::string results(const std::string& name, const std::vector<std::string>& nodes, const std::string& gpus,
                      double bandwidth, const std::string& cpu = "x") {
    const auto path = folder_ / name;
    ResultsWriter writer(path);
    Head head;
    head.command = "image-check run";
    head.nodes = nodes;
    head.machine = {{"CPU", cpu}};
    writer.write(head);
    writer.write(Fact{"node", "gpus", gpus, nodes.back()});
    for (int launch = 0; launch < 3; ++launch) {
      Sample sample;
      sample.check = "node";
      sample.metric = "memory_bandwidth";
      sample.better = "more";
      sample.value = bandwidth;
      sample.launch = launch;
      sample.node = nodes.back();
      writer.write(sample);
    }
    writer.write(Summary{});
    return path;
  }
  Results compared(const std::string& a, const std::string& b, bool other_hardware = false) {
    CompareOptions options;
    options.a = a;
    options.b = b;
    options.folder = folder_ / "verdict";
    options.other_hardware = other_hardware;
    options.again = [&](const std::filesystem::path& where) {
      std::filesystem::copy(
          b, where, std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
    };
    std::ostringstream out;
    return compare(options, out);
  }
  TemporaryFolder folder_;
};

TEST_F(CompareResults, NodesOfOtherNamesAreComparedOneByOne) {
  const auto a = results("a", {"n1", "n2"}, "8", 10);
  EXPECT_EQ(compared(a, results("same", {"m1", "m2"}, "8", 10)).summary.exit_status, 0);
  const auto fewer = compared(a, results("fewer", {"m1", "m2"}, "7", 10));
  EXPECT_EQ(fewer.summary.exit_status, 1);
  EXPECT_EQ(fewer.checks.at(0).findings.at(0).text, "m2: gpus is '7', and was '8'");
  const auto slower = compared(a, results("slower", {"m1", "m2"}, "8", 5));
  EXPECT_EQ(slower.summary.exit_status, 1);
  ASSERT_EQ(slower.comparisons.size(), 1U);
  EXPECT_EQ(slower.comparisons[0].verdict, "worse");
  EXPECT_EQ(slower.comparisons[0].again_b.size(), 3U);
}

TEST_F(CompareResults, OtherHardwareIsRefusedUnlessAsked) {
  const auto a = results("a", {"n"}, "8", 10), b = results("b", {"n"}, "8", 10, "y");
  EXPECT_THROW(compared(a, b), multinode::UsageError);
  EXPECT_EQ(compared(a, b, true).summary.exit_status, 0);
}

}  // namespace image_check::compare_test
