#include "control-plane/records.hpp"
#include "control-plane/log.hpp"

#include <multinode/base/descriptor.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace records_test {

using namespace std::chrono_literals;
using cluster::Records;

class RecordsTest : public testing::Test {
 protected:
  // All of a record, until its end.
  std::string read(std::int64_t job, int status = 0) {
    std::string text;
    while (const auto part = records.read(job, text.size(), multinode::testing::patience)) {
      text += part->text;
      if (part->status) {
        EXPECT_EQ(*part->status, status);
        return text;
      }
      if (part->text.empty()) break;
    }
    ADD_FAILURE() << "no end";
    return text;
  }

  const multinode::testing::TemporaryFolder folder_;
  std::vector<std::string> log;
  Records records{folder_ / "jobs", [this](const std::string& line) { log.push_back(line); }};
};

TEST_F(RecordsTest, AreWhatWasWrittenAndStay) {
  records.write(1, "one\n");
  records.write(2, "other\n");
  EXPECT_EQ(records.read(1, 0, multinode::testing::patience)->text, "one\n");
  records.write(1, "two\n");
  records.end(1, 7);
  EXPECT_EQ(read(1, 7), "one\ntwo\n");
  EXPECT_EQ(multinode::testing::text_of((folder_ / "jobs/1.log").string()), "one\ntwo\n");
  const auto part = records.read(2, 6, 1ms);
  EXPECT_TRUE(part && part->text.empty() && !part->status) << "it runs";
  EXPECT_FALSE(records.read(3, 0, 1ms));
  EXPECT_EQ(Records(folder_ / "jobs", [](const std::string&) {}).newest(), 2) << "the next head takes other numbers";
}

// The file may have 100,000 bytes, as on a disk that is full then.
TEST_F(RecordsTest, OfAFullDiskSayThatTheyAreIncompleteAndKeepTheEnd) {
  rlimit old{}, full{100'000, RLIM_INFINITY};
  getrlimit(RLIMIT_FSIZE, &old);
  full.rlim_max = old.rlim_max;
  const auto before = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &full);
  for (int i = 0; i < 50'000; ++i) records.write(1, std::to_string(i) + "\n");
  records.write(1, "cluster: job 1 failed\n");
  records.end(1, 1);
  const std::string text = read(1, 1);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, before);
  const auto note =
      text.find("cluster: this record is incomplete: " + (folder_ / "jobs/1.log").string() + ": File too large\n");
  ASSERT_NE(note, text.npos) << text.substr(99'000, 2000);
  EXPECT_EQ(text.substr(0, 100'000).substr(0, 4), "0\n1\n");
  EXPECT_EQ(note, 100'000u);
  EXPECT_NE(text.find(" lines are left out here: ", note), text.npos);
  EXPECT_TRUE(text.ends_with("49998\n49999\ncluster: job 1 failed\n"));
  EXPECT_EQ(log, std::vector({"cannot write " + (folder_ / "jobs/1.log").string() + ": File too large"}));
}

// A named pipe that nobody reads is a disk that stalls.
TEST_F(RecordsTest, OfASlowDiskKeepTheEnd) {
  const std::string file = folder_ / "jobs/1.log";
  ASSERT_EQ(mkfifo(file.c_str(), 0600), 0);
  const std::string line(1023, 'x');
  const auto start = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < 3 * Records::most_waiting / 1024; ++i) records.write(1, line + "\n");
  records.write(1, "cluster: job 1 has ended\n");
  records.end(1, 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s) << "the writers do not wait";
  std::ifstream stream(file);
  std::size_t lines = 0, left_out = 0;
  for (std::string one, last; std::getline(stream, one); ++lines) {
    if (one.starts_with("cluster: ") && one.find(" lines are left out here: the disk was too slow") != one.npos)
      left_out += std::stoul(one.substr(9)), --lines;  // once or twice
    if (stream.peek() == std::char_traits<char>::eof()) {
      EXPECT_EQ(one, "cluster: job 1 has ended");
    }
  }
  EXPECT_EQ(lines + left_out, 3 * Records::most_waiting / 1024 + 1);
  EXPECT_GT(left_out, 0u);
}

TEST(Log, DoesNotWaitForItsFile) {
  auto [from, to] = multinode::make_pipe();
  std::atomic<std::size_t> size = 0;
  std::string text;
  std::jthread reader;
  {
    cluster::Log log(to.get());
    const std::string line(100, 'x');
    const auto start = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < 2 * cluster::Log::most_lines; ++i) log(line);  // more than a pipe takes
    EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
    reader = std::jthread([&, end = from.get()] {
      std::array<char, 4096> bytes{};
      for (ssize_t count = 0; (count = read(end, bytes.data(), bytes.size())) > 0; size = text.size())
        text.append(bytes.data(), static_cast<std::size_t>(count));
    });
    while (size < 1 << 20) std::this_thread::sleep_for(1ms);
    log("the last");
  }
  to.reset();
  reader.join();
  EXPECT_TRUE(text.ends_with("Z the last\n")) << text.substr(text.size() - 200);
  EXPECT_NE(text.find(" lines are left out\n"), text.npos);
}

}  // namespace records_test
