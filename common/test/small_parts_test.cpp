// Small parts: lists for messages, numbers from text, medians, files of /proc and /sys.
#include <multinode/base/files.hpp>
#include <multinode/base/median.hpp>
#include <multinode/base/text.hpp>
#include <multinode/node/limits.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <vector>

namespace {

using namespace multinode;

TEST(Text, OnlyDecimalNumbersAreParsed) {
  EXPECT_EQ(parse_decimal<int>("0042"), 42);
  EXPECT_EQ(parse_decimal<std::uint16_t>("65535"), 65'535);
  EXPECT_EQ(parse_decimal<std::uint16_t>("65536"), std::nullopt);
  for (const char* text : {"", " 1", "1 ", "+1", "-1", "-0", "0x1", "1.0", "one"})
    EXPECT_EQ(parse_decimal<int>(text), std::nullopt) << text;
}

TEST(Text, AnyBytesArePrintable) {
  EXPECT_EQ(printable("a\nb\x01\xff"), "a?b??");
  EXPECT_EQ(printable(std::string(60, 'a')), std::string(60, 'a'));
  EXPECT_EQ(printable(std::string(61, 'a')), std::string(60, 'a') + "...");
}

TEST(Text, JoinsWordsAndNumbers) {
  EXPECT_EQ(join(std::vector<std::string>{}), "");
  EXPECT_EQ(join(std::vector<std::string>{"", "b", ""}), ", b, ");
  EXPECT_EQ(join(std::set<int>{30, -2}), "-2, 30");
  EXPECT_EQ(join(std::vector<std::size_t>{2, 3}, " x "), "2 x 3");
  const auto key = [](const auto& named) { return named.first; };
  EXPECT_EQ(join(std::map<std::string, int>{{"a", 1}, {"b", 2}}, ",", key), "a,b");
}

TEST(Text, RankListsHaveSingularAndPlural) {
  EXPECT_EQ(rank_list(std::vector<int>{3}), "rank 3");
  EXPECT_EQ(rank_list(std::vector<std::size_t>{1, 2}), "ranks 1, 2");
}

TEST(Text, TheWholeTextMustBeANumber) {
  EXPECT_EQ(number_of<int>("-12"), -12);
  EXPECT_EQ(number_of<double>("1.5"), 1.5);
  for (const char* text : {"", " 1", "1 ", "0x10", "one", "300"}) EXPECT_FALSE(number_of<std::uint8_t>(text)) << text;
}

TEST(Median, OfAnyOrder) {
  EXPECT_EQ(median({7}), 7);
  EXPECT_EQ(median({9, 1, 5}), 5);
  EXPECT_EQ(median({4, 1, 100, 2}), 3);
  EXPECT_THROW(median({}), std::logic_error);
}

TEST(Files, MissingFilesAreUnknown) {
  const multinode::testing::TemporaryFolder folder;
  folder.write("b", " 42 ");
  folder.write("a/empty", "");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(names_in(folder / "c"), std::vector<std::string>{});
  EXPECT_EQ(read_text(folder / "b"), "42");
  EXPECT_EQ(read_number<int>(folder / "b"), 42);
  for (const char* name : {"a", "a/empty", "c"}) EXPECT_FALSE(read_text(folder / name)) << name;
  EXPECT_TRUE(is_there(folder / "a/empty"));
  EXPECT_FALSE(is_there(folder / "c"));
}

TEST(Limits, TheLowestLimitOfTheCgroupsCounts) {
  const multinode::testing::TemporaryFolder root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/a/b");
  root.write("sys/fs/cgroup/a/cpu.max", "150000 100000");
  root.write("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(read_cgroup(root.path()).cpus, 1.5);
  EXPECT_EQ(read_cgroup(root.path()).memory_bytes, 2097152);
  EXPECT_FALSE(allowed_cpus().empty());
}

TEST(Limits, NonsenseIsUnlimited) {
  const multinode::testing::TemporaryFolder root;
  root.write("proc/self/cgroup", "no colons\n:\n4:memory:/docker/4f\n1:cpu:/docker/4f\n0::/a");
  root.write("sys/fs/cgroup/a/cpu.max", "100000 0");
  root.write("sys/fs/cgroup/a/memory.max", "12 apples");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_FALSE(read_cgroup(root.path()).cpus);
  EXPECT_FALSE(read_cgroup(root.path()).memory_bytes);
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000");  // mounted here: the host's path is not visible
  EXPECT_EQ(read_cgroup(root.path()).cpus, 2.5);
}

}  // namespace
