#include "cluster/process.hpp"

#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

namespace process_test {

namespace fs = std::filesystem;
using cluster::Child;
using cluster::StartError;
using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;
using namespace std::chrono_literals;

class Processes : public testing::Test {
 protected:
  fs::path script(const std::string& name, const std::string& text, mode_t mode = 0755) {
    std::ofstream(folder_ / name) << "#!/bin/sh\n" << text << '\n';
    chmod((folder_ / name).c_str(), mode);
    return folder_ / name;
  }
  Child start(const std::string& text, std::vector<std::string> arguments = {}) {
    return Child({script("job", text), std::move(arguments), {"PATH=" + std::string(std::getenv("PATH"))}, "s3cret"});
  }

  struct Said {
    std::string out, err, report;
    int status = -1;
  };
  // All that a process says until its end.
  static Said read_all(Child& child) {
    Said said;
    const auto deadline = std::chrono::steady_clock::now() + multinode::testing::patience;
    while (!child.drained() && std::chrono::steady_clock::now() < deadline) {
      child.status();
      std::string* const into[] = {&said.out, &said.err, &said.report};
      for (const Child::Stream stream : {Child::out, Child::err, Child::report})
        if (child.descriptor(stream) >= 0) *into[stream] += child.read(stream);
      std::this_thread::sleep_for(1ms);
    }
    said.status = child.status().value_or(-1);
    return said;
  }
  static bool ends(pid_t pid) {
    for (int i = 0; i < 20'000; ++i) {
      const std::string text = text_of("/proc/" + std::to_string(pid) + "/stat");
      if (text.empty() || text.find(") Z ") != text.npos) return true;
      std::this_thread::sleep_for(5ms);
    }
    return false;
  }

  const TemporaryFolder folder_;
};

std::string refusal(const fs::path& jobs, const std::string& name, int& status) {
  try {
    return cluster::find_program(jobs, name);
  } catch (const StartError& e) {
    status = e.status;
    return e.what();
  }
}

TEST_F(Processes, OnlyWhatIsInTheJobFolderIsFound) {
  script("good", "true");
  script("plain", "true", 0644);
  fs::create_directory(folder_ / "folder");
  fs::create_symlink("/bin/true", folder_ / "link");  // whoever made the folder wants it
  fs::create_symlink("/nowhere", folder_ / "dangling");
  EXPECT_EQ(cluster::find_program(folder_.path(), "good"), folder_ / "good");
  EXPECT_EQ(cluster::find_program(folder_.path(), "link"), folder_ / "link");
  for (const auto& [name, status, why] :
       {std::tuple{"absent", 127, "is not in the job folder " + folder_.path().string()},
        {"dangling", 127, std::string("is not in the job folder")},
        {"plain", 126, std::string("is not executable")},
        {"folder", 126, std::string("is a folder")},
        {"", 127, std::string("named without '/'")},
        {"../", 127, std::string("named without '/'")},
        {"..", 127, std::string("named without '/'")},
        {"/bin/true", 127, std::string("named without '/'")},
        {"folder/../good", 127, std::string("named without '/'")}}) {
    int said = 0;
    EXPECT_NE(refusal(folder_.path(), name, said).find(why), std::string::npos) << refusal(folder_.path(), name, said);
    EXPECT_EQ(said, status) << name;
  }
  int status = 0;
  EXPECT_NE(refusal(folder_.path(), std::string("good\0x", 6), status), folder_ / "good");
}

TEST_F(Processes, WhatCannotRunSaysWhy) {
  std::ofstream(folder_ / "text") << "just text\n";
  chmod((folder_ / "text").c_str(), 0755);
  std::ofstream(folder_ / "script") << "#!/no/such/interpreter\n";
  chmod((folder_ / "script").c_str(), 0755);
  for (const auto& [name, status, why] : {std::tuple{"text", 126, "Exec format error"}, {"script", 127, "interpreter"}})
    try {
      const Child child({folder_ / name, {}, {}, ""});
      FAIL() << name;
    } catch (const StartError& e) {
      EXPECT_EQ(e.status, status);
      EXPECT_NE(std::string(e.what()).find(why), std::string::npos) << e.what();
    }
}

TEST_F(Processes, ArgumentsAndTheWayItEndsArriveAsTheyAre) {
  Child child = start("printf '<%s>\\n' \"$@\"; echo oops >&2; exit 7", {"a b", "", "$(id)", "*"});
  const Said said = read_all(child);
  EXPECT_EQ(said.out, "<a b>\n<>\n<$(id)>\n<*>\n");
  EXPECT_EQ(said.err, "oops\n");
  EXPECT_EQ(said.status, 7);
  Child killed = start("kill -9 $$");
  EXPECT_EQ(read_all(killed).status, 128 + SIGKILL);
}

TEST_F(Processes, HasASecretAndAReportAndNoOtherDescriptor) {
  const int leak = fcntl(0, F_DUPFD, 20);  // not close-on-exec
  ASSERT_GE(leak, 20);
  Child child = start(
      "cat <&$CLUSTER_SECRET_FD; echo '{\"a\":1}' >&$CLUSTER_REPORT_FD; readlink /proc/self/fd/0; "
      "exec ls /proc/self/fd");
  const Said said = read_all(child);
  close(leak);
  EXPECT_EQ(said.report, "{\"a\":1}\n");
  EXPECT_EQ(said.out, "s3cret\n/dev/null\n0\n1\n2\n3\n4\n5\n");  // the last is the folder that ls reads
}

TEST_F(Processes, SignalsAreAsForANewProgram) {
  sigset_t set, old;
  sigfillset(&set);
  pthread_sigmask(SIG_BLOCK, &set, &old);
  const auto before = signal(SIGPIPE, SIG_IGN);
  Child child = start("exec grep -E '^Sig(Blk|Ign)' /proc/self/status");
  signal(SIGPIPE, before);
  pthread_sigmask(SIG_SETMASK, &old, nullptr);
  EXPECT_EQ(read_all(child).out, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
}

TEST_F(Processes, LinesAreWhole) {
  Child child = start("printf one; sleep 0.1; printf ' line\\nlast'; head -c 200000 /dev/zero | tr '\\0' x >&2");
  std::string out, err;
  while (!child.drained()) {
    child.status();
    if (child.descriptor(Child::out) >= 0) {
      const std::string lines = child.read(Child::out);
      EXPECT_TRUE(lines.empty() || lines.back() == '\n') << lines;
      out += lines;
    }
    if (child.descriptor(Child::err) >= 0) err += child.read(Child::err);
    if (child.descriptor(Child::report) >= 0) child.read(Child::report);
  }
  EXPECT_EQ(out, "one line\nlast\n");
  EXPECT_EQ(err.size(), 200'000u + 4);
  EXPECT_EQ(err.find('\n'), Child::longest_line);
}

TEST_F(Processes, MoreThanALimitIsDropped) {
  Child child = start("yes 0123456789abcde | head -c 80000000; echo still there >&2");
  const Said said = read_all(child);
  EXPECT_EQ(said.status, 0);
  EXPECT_GE(said.out.size(), Child::most_output - (64 << 10));
  EXPECT_LE(said.out.size(), Child::most_output + 100);
  EXPECT_TRUE(said.out.ends_with("cluster: this process wrote more than 64 MiB; the rest is dropped\n"));
  EXPECT_EQ(said.err, "");
}

// What it started ends with it, and who keeps the pipe open in a group of his own does not hold up its end.
TEST_F(Processes, ItsGroupEndsWithIt) {
  Child child = start("sleep 1000 & echo $!; setsid sleep 60 & exit 0");
  const auto start = std::chrono::steady_clock::now();
  const Said said = read_all(child);
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s);
  EXPECT_TRUE(ends(std::stoi(said.out))) << said.out;
}

class ProcessesOfADeadParent : public Processes, public testing::WithParamInterface<bool> {};

// The kernel kills them, and the guard, if there is one, what they started. The parent that dies is a fork of this
// test.
TEST_P(ProcessesOfADeadParent, AreKilled) {
  const bool guarded = GetParam();
  int ends_[2];
  ASSERT_EQ(pipe(ends_), 0);
  const fs::path job_file = script("job", "sleep 30 & echo $$; echo $!; wait");
  const pid_t parent = fork();
  if (parent == 0) {
    std::optional<cluster::Guard> guard;
    if (guarded) guard.emplace(ends_[1]);
    Child child({job_file, {}, {"PATH=/bin:/usr/bin"}, ""}, guard ? &*guard : nullptr);
    std::string out;
    while (std::count(out.begin(), out.end(), '\n') < 2) out += child.read(Child::out);
    (void)!write(ends_[1], out.data(), out.size());
    raise(SIGKILL);
  }
  close(ends_[1]);
  std::string out;
  char byte = 0;
  while (read(ends_[0], &byte, 1) == 1) out += byte;  // until the guard, the last that has it, gives it back
  close(ends_[0]);
  waitpid(parent, nullptr, 0);
  pid_t job = 0, its = 0;
  ASSERT_EQ(sscanf(out.c_str(), "%d\n%d", &job, &its), 2) << out;
  EXPECT_TRUE(ends(job));
  if (guarded) {
    EXPECT_TRUE(ends(its));
  }
  kill(its, SIGKILL);
}

INSTANTIATE_TEST_SUITE_P(With, ProcessesOfADeadParent, testing::Bool(),
                         [](const auto& guarded) { return guarded.param ? "AGuard" : "None"; });

}  // namespace process_test
