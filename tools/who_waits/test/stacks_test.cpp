// who_waits: what it reads of stacks, and the tree of all ranks. See also who_waits_attach_test.py.
#include <attach.hpp>
#include <stacks.hpp>

#include <multinode/base/check.hpp>

#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <future>
#include <map>
#include <thread>

namespace who_waits_test {

using namespace multinode::testing;
using namespace who_waits;

std::string line_of(const std::string& text) { return stack_line({.threads = parsed_stacks(text)}); }

TEST(WhoWaitsStacks, OfALongStackTheCallThatTheProgramMadeIsShown) {
  std::string text = "warning: no symbols\n#0  0x00007f2c in ?? () from /lib/libucp.so\n";
  for (int i = 1; i < 40; ++i) text += fmt::format("#{}  0x00007f2c in progress{} () from /lib/libmpi.so\n", i, i);
  text += "#40 0x00007f2c in PMPI_Win_fence () from /lib/libmpi.so\n";
  for (int i = 41; i < 70; ++i) text += fmt::format("#{} 0x00007f2c in step{} (n=2) at /src/a/solver.c:{}\n", i, i, i);
  text += "#70 main () at a.c:7\n#71 0x1 in _start ()\n";
  const Stack stack = parsed_stacks(text).at(0);
  EXPECT_EQ(stack.size(), 31u);
  EXPECT_EQ(stack.front(), (Frame{"main", "a.c:7"}));
  EXPECT_EQ(stack.at(29), (Frame{"step41", "solver.c:41"}));
  EXPECT_EQ(stack.back(), (Frame{"MPI_Win_fence", ""}));
  EXPECT_EQ(line_of("#0  0x01 in add (n=2) at /src/sum.c:9\n#1  0x02 in ompi_reduce (n=2) at coll.c:7\n#2  0x03 in "
                    "PMPI_Reduce ()\n#3  0x04 in main () at /src/sum.c:20\n"),
            "in add <- MPI_Reduce <- main");
  EXPECT_EQ(line_of("#0  0x01 __futex\n#1  0x02 __join\n#2  0x03 std::thread::join()\n#3  0x04 run<int>(int)\n    "
                    "/a/b.cpp:7:2\n"),
            "in std::thread::join <- run");
  EXPECT_EQ(line_of("#0  0x01 void (anonymous namespace)::wait<std::vector<int> >(int) const\n#1  0x02 main\n"),
            "in wait <- main");
  EXPECT_EQ(line_of("#0  0x01 (anonymous namespace)::jobs::{lambda()#3}::operator()() const\n#1  0x02 "
                    "std::enable_if<true, void>::type std::__invoke_r<void, int>(int)\n#2  0x03 main\n"),
            "in jobs::lambda <- main");
  EXPECT_EQ(line_of("#0  0x00007f2c read\n#1  0x00007f2c work::step(int)\n"), "in read <- work::step");
}

TEST(WhoWaitsStacks, ThreadsOfLibrariesAreLeftOut) {
  const auto threads = parsed_stacks(
      "PID 7 - process\nTID 7:\n#0  0x7f2e96 __pthread_join\n#1  0x56 main\n    /src/a/a.cpp:9:2\n#2  0x7f "
      "__libc_start_main@@GLIBC_2.34\n"
      "TID 8:\n#0  0x7f2e96 epoll_wait\n#1  0x7f2e97\n#2  0x7f2e98 start_thread\n#3  0x7f2e99 __clone3\n"
      "TID 9:\n#0  0x7f2e96 work(int)\n    /src/a/a.cpp:4:1\n#1  0x7f2e98 start_thread\n#2  0x7f2e99 __clone3\n");
  ASSERT_EQ(threads.size(), 2u);
  EXPECT_EQ(threads[0], (Stack{{"main", "a.cpp:9"}, {"pthread_join", ""}}));
  EXPECT_EQ(threads[1], (Stack{{"work", "a.cpp:4"}}));
}

TEST(WhoWaitsStacks, PythonsLinesAreRead) {
  const auto threads = parsed_python(
      "Process 7: python3 hang.py\nPython v3.11.2 (/usr/bin/python3.11)\n\nThread 7 (active): \"MainThread\"\n    load "
      "(/src/a/hang.py:6)\n    <module> (hang.py:9)\n");
  ASSERT_EQ(threads.size(), 1u);
  EXPECT_EQ(threads[0], (Stack{{"<module>", "hang.py:9", true}, {"load", "hang.py:6", true}}));
  const auto lines = tree({{.rank = 1, .pid = 7, .host = "node0", .threads = threads}});
  EXPECT_EQ(lines.at(0), "rank 1: hang.py:6 in load   (node0, pid 7)");
}

TEST(WhoWaitsStacks, RanksThatDoTheSameShareALineAndABranch) {
  std::vector<ProcessStacks> ranks;
  for (int i = 0; i < 1000; ++i) {
    ranks.push_back({.rank = i, .pid = 1000 + i, .host = "node1"});
    ranks.back().threads = {{{"main", "run.cpp:50"}, {"solve", "solver.cpp:120"}, {"MPI_Allreduce", ""}}};
  }
  ranks[412].threads = {{{"main", "run.cpp:40"}, {"load", "io.cpp:33"}, {"MPI_Recv", ""}}};
  ranks[413].threads[0].back().function = "MPI_Barrier";
  ranks[7].threads.clear();
  ranks[7].problem = "no stack";
  EXPECT_EQ(tree(ranks),
            (std::vector<std::string>{"rank 7: no stack   (node1, pid 1007)",
                                      "rank 412 in MPI_Recv, io.cpp:33   (node1, pid 1412)",
                                      "rank 413 in MPI_Barrier, solver.cpp:120   (node1, pid 1413)",
                                      "ranks 0-6, 8-411, 414-999 in MPI_Allreduce, solver.cpp:120",
                                      "  rank 412: main run.cpp:40 > load io.cpp:33 > MPI_Recv",
                                      "  ranks 0-6, 8-411, 413-999: main run.cpp:50 > solve solver.cpp:120",
                                      "    ranks 0-6, 8-411, 414-999: MPI_Allreduce", "    rank 413: MPI_Barrier"}));
  ProcessStacks interpreter{.rank = 3, .pid = 5, .host = "node1"};
  interpreter.threads = {{}};  // without the interpreter's functions
  EXPECT_EQ(tree({interpreter}), std::vector<std::string>{"rank 3 in Python   (node1, pid 5)"});
}

// A program of this test alone.
class WhoWaitsRanks : public ::testing::Test {
 protected:
  Process start(std::map<std::string, std::string> environment, const std::string& what = "sleep 600") {
    if (!std::filesystem::exists(folder_ / program_)) folder_.write(program_, "#!/bin/sh\necho up\n" + what);
    ::chmod((folder_ / program_).c_str(), 0755);
    return Process({folder_ / program_}, environment);
  }
  const TemporaryFolder folder_;
  const std::string program_ = folder_.path().filename();
};

TEST_F(WhoWaitsRanks, AreFoundByTheirEnvironment) {
  const auto mine = [](const Process& one) { return ranks_of(std::to_string(one.pid())); };
  Process one = start({{"RANK", "3"}, {"WORLD_SIZE", "4"}, {"LOCAL_RANK", "1"}, {"MNRUN_RUN_ID", "a"}});
  Process torch = start({{"RANK", "2"}, {"WORLD_SIZE", "4"}});  // without LOCAL_RANK
  Process alone = start({});
  for (Process* const each : {&one, &torch, &alone}) ASSERT_TRUE(each->wait_for("up"));
  ASSERT_EQ(mine(one).size(), 1u);
  EXPECT_EQ(mine(one).at(0).rank, 3);
  ASSERT_EQ(mine(torch).size(), 1u);
  EXPECT_EQ(mine(torch).at(0).world_size, 4);
  EXPECT_TRUE(mine(alone).empty());
  EXPECT_EQ(ranks_of(program_).size(), 2u);
  EXPECT_EQ(ranks_of(folder_ / program_).size(), 2u);
  EXPECT_EQ(ranks_of(std::filesystem::relative(folder_ / program_)).size(), 2u);
  EXPECT_TRUE(ranks_of("/elsewhere/" + program_).empty());
  EXPECT_TRUE(ranks_of("no-such-program").empty());
}

TEST_F(WhoWaitsRanks, AreNotTheWorkersThatTheyFork) {  // such as those of torch's DataLoader
  folder_.write("libtorch", "");
  folder_.write("fork.py", "import mmap, os, time\nlibrary = mmap.mmap(os.open('" + (folder_ / "libtorch").string() +
                               "', os.O_RDONLY), 0, prot=mmap.PROT_READ)\nprint('rank', os.getpid(), flush=True)\n"
                               "if os.fork() == 0: print('worker', flush=True)\ntime.sleep(600)\n");
  Process script = start({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "python3 " + (folder_ / "fork.py").string());
  const auto rank = script.wait_for("rank (\\d+)");
  ASSERT_TRUE(rank && script.wait_for("worker"));
  const auto found = ranks_of(std::to_string(script.pid()));
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(std::to_string(found[0].pid), (*rank)[1]);
  Process again = start({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, "python3 " + (folder_ / "fork.py").string());
  ASSERT_TRUE(again.wait_for("worker"));
  EXPECT_THROW(ranks_of((folder_ / "fork.py").string()), multinode::UsageError);  // two runs of one name
}

pid_t tracer_of(pid_t pid) {
  const auto found = match_in(text_of(fmt::format("/proc/{}/status", pid)), "TracerPid:\\s+(\\d+)");
  return found.empty() ? 0 : std::stoi(found[1]);
}

// As a debugger or strace of the user.
class Tracer {
 public:
  explicit Tracer(pid_t traced) : traced_(traced), pid_(::fork()) {
    if (pid_ == 0) ::_exit(::ptrace(PTRACE_SEIZE, traced, nullptr, nullptr) == 0 ? ::pause() : 1);
    soon([&] { return traces() || state_of(pid_) == 'Z'; });
  }
  ~Tracer() { ::kill(pid_, SIGKILL), ::waitpid(pid_, nullptr, 0); }
  bool traces() const { return tracer_of(traced_) == pid_; }

 private:
  const pid_t traced_, pid_;
};

// Scripts in place of the tools, which look at a process.
class WhoWaitsTools : public ::testing::Test {
 protected:
  void tool(const std::string& name, const std::string& script) {
    folder_.write(name, script);
    ::chmod((folder_ / name).c_str(), 0755);
    ::setenv("PATH", (folder_.path().string() + ":" + path_).c_str(), 1);
  }
  ~WhoWaitsTools() override { ::setenv("PATH", path_.c_str(), 1); }
  const std::string path_ = std::getenv("PATH");
  const TemporaryFolder folder_;
  const Process rank_{{"sleep", "600"}};
};

TEST_F(WhoWaitsTools, AreNotStartedWhereTheUsersDebuggerLooks) {
  const Tracer debugger(rank_.pid());
  if (!debugger.traces()) GTEST_SKIP() << "no process may trace another one here";
  tool("eu-stack", "#!/bin/sh\n: >$(dirname $0)/started");
  const ProcessStacks stacks = stacks_of(rank_.pid());
  EXPECT_TRUE(stacks.threads.empty());
  EXPECT_SAYS(stacks.problem, fmt::format("(pid {}) traces it: look there, or end that first", tracer_of(rank_.pid())));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "started"));
  EXPECT_TRUE(debugger.traces());
}

TEST_F(WhoWaitsTools, AloneAreEnded) {
  tool("gdb", "#!/bin/sh");
  tool("eu-stack", "#!/bin/sh\ncd $(dirname $0) && : >started && while [ ! -e go ]; do sleep 0.01; done");
  auto stacks = std::async(std::launch::async, stacks_of, rank_.pid());
  ASSERT_TRUE(soon([&] { return std::filesystem::exists(folder_ / "started"); }));
  const Tracer debugger(rank_.pid());  // comes after the look at who traces it
  const bool traced = debugger.traces();
  if (traced) std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // longer than an own tool may
  folder_.write("go", "");
  EXPECT_EQ(stacks.get().stopped, 0);
  EXPECT_EQ(debugger.traces(), traced) << "the user's debugger was ended";
}

TEST_F(WhoWaitsTools, StopTheProcessForASecondAtMost) {
  tool("gdb", "#!/bin/sh");
  tool("eu-stack",
       "#!/usr/bin/env python3\nimport ctypes, sys, time\nctypes.CDLL(None).ptrace(16, int(sys.argv[-1]), 0, 0)\n"
       "time.sleep(600)");
  const ProcessStacks stacks = stacks_of(rank_.pid());
  if (stacks.stopped == 0) GTEST_SKIP() << "no process may trace another one here";
  EXPECT_SAYS(stacks.problem, "could not be read within a second");
  EXPECT_TRUE(soon([&] { return tracer_of(rank_.pid()) == 0 && state_of(rank_.pid()) == 'S'; }));
}

TEST_F(WhoWaitsTools, SayThatAProcessIsStopped) {
  tool("eu-stack", "#!/bin/sh\necho '#0  0x01 main'");
  ::kill(rank_.pid(), SIGSTOP);
  ASSERT_TRUE(soon([&] { return state_of(rank_.pid()) == 'T'; }));
  const ProcessStacks stacks = stacks_of(rank_.pid());
  EXPECT_SAYS(stacks.problem, "stopped (state T), as by Ctrl-Z, SIGSTOP or a batch system: kill -CONT");
  EXPECT_EQ(stacks.threads.size(), 1u);
  EXPECT_EQ(state_of(rank_.pid()), 'T');
}

TEST_F(WhoWaitsTools, RunInTheContainerOfTheProcess) {
  tool("gdb", "#!/bin/sh");
  tool("eu-stack", "#!/bin/sh\necho \"#0  0x01 in_$(readlink /proc/self/ns/mnt | tr -dc 0-9)_pid_$5\"");
  Process box({"unshare", "-r", "-m", "-p", "-f", "--mount-proc", "sh", "-c", "echo up; sleep 600; :"},
              {{"INSIDE", "yes"}});
  if (!box.wait_for("up")) GTEST_SKIP() << "no process may make namespaces here";
  const std::string outside = std::filesystem::read_symlink("/proc/self/ns/mnt");
  const pid_t shell = std::stoi(text_of(fmt::format("/proc/{0}/task/{0}/children", box.pid())));
  const std::string inside = std::filesystem::read_symlink(fmt::format("/proc/{}/ns/mnt", shell));
  ASSERT_NE(inside, outside);
  EXPECT_EQ(stack_line(stacks_of(shell)), fmt::format("in in_{}_pid_1", match_in(inside, "(\\d+)").at(1)));
  tool("nsenter", "#!/bin/sh");
  const ProcessStacks stacks = stacks_of(shell);
  EXPECT_SAYS(stacks.problem, "the files of its container could not be read, so names may be wrong");
  EXPECT_EQ(stack_line(stacks), fmt::format("in in_{}_pid_{}", match_in(outside, "(\\d+)").at(1), shell));
}

#ifdef PATH_who_waits
TEST_F(WhoWaitsRanks, ThatAreNotFoundAreNamed) {
  const auto says = [&](const std::string& size, const std::string& local_size) {
    std::map<std::string, std::string> variables{
        {"RANK", "0"}, {"WORLD_SIZE", size}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", local_size}};
    Process zero = start(variables);
    variables["RANK"] = variables["LOCAL_RANK"] = "1";
    Process one = start(variables);
    EXPECT_TRUE(zero.wait_for("up") && one.wait_for("up"));
    return run({PATH_who_waits, "--attach", program_}).out;
  };
  EXPECT_EQ(says("2", "2").find("ended"), std::string::npos);
  EXPECT_SAYS(says("3", "3"), "rank 2 of 3 has ended\n");
  EXPECT_SAYS(says("4", "2"), "ranks 2-3 of 4 are on a node that was not asked: mpirun -H node0,node1 -N 1 who_waits");
  EXPECT_SAYS(says("6", "3"), "ranks 2-5 of 6 have ended, or are on a node");
}

TEST(WhoWaitsStacks, AnotherUsersJobIsNamed) {
  const std::string first = std::filesystem::path(text_of("/proc/1/cmdline").c_str()).filename();  // up to the zero
  std::vector<std::string> command{PATH_who_waits, "--attach", first};
  if (::geteuid() == 0) command.insert(command.begin(), {"setpriv", "--reuid", "65534", "--clear-groups"});
  if (::geteuid() != 0 && ::access("/proc/1/environ", R_OK) == 0) GTEST_SKIP() << "no other user is here";
  const Result result = run(command);
  if (result.status > 125) GTEST_SKIP() << "another user cannot start who_waits here: " << result.err;
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.err, fmt::format("who_waits: '{}' is pid 1 of ", first));
}

TEST(WhoWaitsStacks, AProgramThatDoesNotRunIsSaid) {
  const Result result = run({PATH_who_waits, "--attach", "no-such-program"});
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.err, "no process of 'no-such-program' has a rank on 1 node: see ps, or give the pid of mpirun");
}
#endif

}  // namespace who_waits_test
