// mnrun as a user runs it, with shell scripts as the processes.
#include <multinode/base/descriptor.hpp>
#include <multinode/store/tcp_store.hpp>

#include <test/support/faults.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <future>
#include <semaphore>
#include <sstream>

namespace mnrun_program_test {

using namespace multinode::testing;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

Words mnrun_with(Words options, const std::string& script) {
  options.insert(options.begin(), PATH_mnrun);
  options.insert(options.end(), {"sh", "-c", script});
  return options;
}

Words on_one_node(int processes, const std::string& script, Words options = {}) {
  options.insert(options.begin(), {"--standalone", "--nproc-per-node", std::to_string(processes)});
  return mnrun_with(options, script);
}

Result standalone(int processes, const std::string& script, const Words& options = {},
                  const std::map<std::string, std::string>& environment = {}) {
  return run(on_one_node(processes, script, options), environment);
}

// The agent of one of several nodes, all on loopback.
Words agent(int nodes, int rank, const FreePort& port, const Words& rest, const std::string& master = "127.0.0.1") {
  Words all{PATH_mnrun,    "--nnodes",           std::to_string(nodes),
            "--node-rank", std::to_string(rank), "--master-addr",
            master,        "--master-port",      std::to_string(port.number())};
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

// Two agents: 2 processes and 1.
struct TwoNodes {
  explicit TwoNodes(const std::string& script, const Words& options = {}) {
    for (int i = 0; i < 2; ++i) {
      Words rest = options;
      rest.insert(rest.end(), {"--nproc-per-node", std::to_string(2 - i), "sh", "-c", script});
      node[i] = std::make_unique<Process>(agent(2, i, port, rest));
    }
  }
  bool are_ready(const std::string& start = "") const {
    const std::string ready = "\\] ready ?" + start;
    return node[0]->wait_for("rank 0" + ready) && node[0]->wait_for("rank 1" + ready) &&
           node[1]->wait_for("rank 2" + ready);
  }
  // The results of both, which must have this status.
  std::array<Result, 2> end_with(int status) const {
    std::array<Result, 2> results{node[0]->wait(), node[1]->wait()};
    for (const Result& result : results) EXPECT_EQ(result.status, status) << result.err;
    return results;
  }
  FreePort port;
  std::unique_ptr<Process> node[2];
};

// The pid of a running rank. A process has no environment while it is executing another program.
pid_t process_of(const Process& mnrun, const std::string& rank) {
  pid_t pid = 0;
  if (!soon([&] { return (pid = mnrun.find("RANK", rank)) != 0; })) throw std::runtime_error("no rank " + rank);
  return pid;
}

Words lines_with(const std::string& text, const std::string& beginning) {
  Words result;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);)
    if (line.starts_with(beginning)) result.push_back(line.substr(beginning.size()));
  return result;
}

// Waits until each of the first ranks has printed `text`.
void expect_each(Process& mnrun, const std::string& text, int ranks = 2) {
  for (int rank = 0; rank < ranks; ++rank)
    ASSERT_TRUE(mnrun.wait_for("rank " + std::to_string(rank) + "\\] " + text)) << rank;
}

TEST(Mnrun, OneProcessWritesWithoutAPipe) { EXPECT_EQ(standalone(1, "printf 'no end of line'").out, "no end of line"); }

// The kernel closes a killed process's connections before its parent can wait for it.
TEST(Mnrun, ReportsTheKilledProcessNotThoseThatFailBecauseOfIt) {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (int i = 0; i < 8; ++i) {
    Process mnrun(on_one_node(2, "if [ $RANK = 1 ]; then exec 3> " + pipe +
                                     "; echo ready; exec sleep 60; fi; read line < " + pipe + "; exit 1"));
    ASSERT_TRUE(mnrun.wait_for("rank 1\\] ready"));
    kill(process_of(mnrun, "1"), SIGKILL);
    const Result r = mnrun.wait();
    EXPECT_EQ(r.status, 137);
    EXPECT_SAYS(r.err, "rank 1 (node 0, host ");
  }
}

TEST(Mnrun, SaysThatTheKernelKilledForLackOfMemory) {
  const std::string v1 = "/sys/fs/cgroup/memory", v2 = "/sys/fs/cgroup",
                    name = "/mnrun-test-" + std::to_string(getpid());
  const std::string cgroup = (std::filesystem::exists(v1) ? v1 : v2) + name;
  std::error_code error;
  if (!std::filesystem::create_directory(cgroup, error)) GTEST_SKIP() << "no cgroup can be made: " << error.message();
  const std::string limit = cgroup + (std::filesystem::exists(v1) ? "/memory.limit_in_bytes" : "/memory.max");
  if (!std::filesystem::exists(limit)) GTEST_SKIP() << "no memory controller in " << v2;
  const Result r =
      run({"sh", "-c",
           "echo 80M >" + limit + "; echo $$ >" + cgroup + "/cgroup.procs; grep -q ':" + name +
               "$' /proc/self/cgroup || exit 77; exec " PATH_mnrun
               " --standalone --nproc-per-node 2 sh -c 'if [ $RANK = 1 ]; then a=x; while :; do a=$a$a; done; "
               "fi; sleep 60'"});
  std::filesystem::remove(cgroup, error);
  if (r.status == 77) GTEST_SKIP() << "in this container, cgroups have other names in /proc than in /sys";
  EXPECT_EQ(r.status, 137);
  EXPECT_SAYS(r.err, "was killed by signal 9 (SIGKILL): out of memory (limit 80 MiB)\n");
}

TEST(Mnrun, NamesTheLimitOfOpenFiles) {
  const Result r = run({"sh", "-c", "ulimit -n 64; exec " PATH_mnrun " --standalone --nproc-per-node 30 true"});
  EXPECT_EQ(r.status, 1);
  EXPECT_SAYS(r.err, "(this process may have 64 open files: see \"ulimit -n\"): Too many open files\n");
}

TEST(Mnrun, KillsProcessesThatIgnoreSigtermWithTheirChildren) {
  Process mnrun(on_one_node(2, "trap '' TERM; sleep 60 & echo child $!; read line < /dev/null; wait"));
  const auto grandchild = mnrun.wait_for("\\[rank 1\\] child (\\d+)");
  ASSERT_TRUE(grandchild);
  const pid_t pid = std::stoi((*grandchild)[1]);
  const auto begin = std::chrono::steady_clock::now();
  kill(process_of(mnrun, "0"), SIGKILL);
  EXPECT_EQ(mnrun.wait().status, 137);
  const auto took = std::chrono::steady_clock::now() - begin;
  EXPECT_GE(took, 400ms);  // it had time to end before it was killed
  EXPECT_LT(took, 30s);
  EXPECT_TRUE(ends(pid));
}

TEST(Mnrun, LeavesNoProcessBehindWhenKilled) {
  Process mnrun(on_one_node(2, "sleep 600 & echo ready $$ $!; wait"));
  std::vector<pid_t> pids;
  for (const std::string rank : {"0", "1"}) {
    const auto match = mnrun.wait_for("\\[rank " + rank + "\\] ready (\\d+) (\\d+)");
    ASSERT_TRUE(match);
    for (const int i : {1, 2}) pids.push_back(std::stoi((*match)[i]));
  }
  mnrun.signal(SIGKILL);
  for (const pid_t pid : pids) EXPECT_TRUE(ends(pid));
}

TEST(Mnrun, ForwardsSignals) {
  Process mnrun(on_one_node(2,
                            "trap 'echo got usr1' USR1; trap 'echo got term; exit 3' TERM; echo ready;"
                            "while :; do sleep 60 & wait $!; done"));
  expect_each(mnrun, "ready");
  mnrun.signal(SIGUSR1);
  expect_each(mnrun, "got usr1");
  mnrun.signal(SIGTERM);
  const Result r = mnrun.wait();
  EXPECT_EQ(r.status, 143);
  EXPECT_EQ(occurrences(r.out, "got term"), 2u) << r.out;
  EXPECT_SAYS(r.err, "signal 15 (SIGTERM)");
}

TEST(Mnrun, SuspendsAndContinuesWithItsProcesses) {
  Process mnrun(on_one_node(2, "echo ready; exec sleep 60"));
  expect_each(mnrun, "ready");
  const pid_t pid = process_of(mnrun, "1");
  mnrun.signal(SIGTSTP);
  EXPECT_TRUE(soon([&] { return state_of(pid) == 'T' && state_of(mnrun.pid()) == 'T'; }));
  mnrun.signal(SIGCONT);
  EXPECT_TRUE(soon([&] { return state_of(pid) == 'S' && state_of(mnrun.pid()) == 'S'; }));
  mnrun.signal(SIGINT);
  EXPECT_EQ(mnrun.wait().status, 130);
}

TEST(Mnrun, ASecondSignalDoesNotWait) {
  Process mnrun(on_one_node(2, "trap 'echo never mind' INT; echo ready; while :; do sleep 60 & wait $!; done"));
  expect_each(mnrun, "ready");
  mnrun.signal(SIGINT);
  expect_each(mnrun, "never mind");
  mnrun.signal(SIGINT);
  const Result r = mnrun.wait();
  EXPECT_EQ(r.status, 130);
  EXPECT_LT(r.seconds.count(), 25) << "it waited for --shutdown-timeout";
}

// Its processes take their time to end: another attempt after a failure is due meanwhile.
constexpr auto lingers = "trap 'echo ends' TERM; echo ready; while :; do sleep 60 & wait $!; done";

TEST(Mnrun, StartErrorsAreOneLine) {
  const TemporaryFolder folder;
  const auto file = [&](const std::string& name, const std::string& text, mode_t mode) {
    const auto path = folder / name;
    std::ofstream(path) << text;
    chmod(path.c_str(), mode);
    return path.string();
  };
  const std::tuple<Words, int, std::string> cases[] = {
      {{"no-such-program"}, 127, "'no-such-program'"},
      {{"train.py"}, 127, "mnrun python3 train.py"},
      {{"/no/such/program"}, 127, "/no/such/program"},
      {{file("plain", "text", 0644)}, 126, "not executable"},
      {{folder.path().string()}, 126, "folder"},
      {{file("script", "#!/no/such/interpreter\n", 0755)}, 127, "interpreter"},
      {{file("damaged", "\177ELF", 0755)}, 126, "damaged"},
      {{"--log-dir", "/proc/no", "--tee", "3", "true"}, 2, "/proc/no"},
      {{"--nproc-per-node", "0", "true"}, 2, "--nproc-per-node"},
      {{"--nnodse", "2", "true"}, 2, "--nnodse"},
  };
  for (const auto& [words, status, part] : cases) {
    Words command = {PATH_mnrun};
    command.insert(command.end(), words.begin(), words.end());
    const Result r = run(command);
    EXPECT_EQ(r.status, status) << r.err;
    EXPECT_SAYS(r.err, part);
    EXPECT_EQ(occurrences(r.err, "\n"), 1u) << r.err;
    EXPECT_EQ(r.out, "");
  }
}

// If mnrun ignored an unknown launcher, each node would run its own world. Shards of a test suite, tasks of an array
// and shells may run alone.
TEST(Mnrun, AndWhoAmIRefuseOnlyWhereOthersAre) {
  const struct {
    std::map<std::string, std::string> environment;
    std::string refused;  // the variable that is named; "": both start
  } cases[] = {
      {{{"NODE_RANK", "0"}, {"AZUREML_NODE_COUNT", "2"}, {"MASTER_ADDR", "10.0.0.4"}, {"MASTER_PORT", "6105"}},
       "NODE_RANK"},
      {{{"_CONDOR_PROCNO", "0"}, {"_CONDOR_NPROCS", "2"}}, "_CONDOR_PROCNO"},
      {{{"VC_TASK_INDEX", "1"}, {"VC_WORKER_NUM", "2"}}, "VC_TASK_INDEX"},
      {{{"VC_TASK_INDEX", "0"}, {"VC_MAIN_HOSTS", "a"}, {"VC_REST_HOSTS", "b"}}, "VC_TASK_INDEX"},
      {{{"SM_CURRENT_HOST", "algo-1"}, {"SM_HOSTS", R"(["algo-1","algo-2"])"}}, "SM_CURRENT_HOST"},
      {{{"AWS_BATCH_JOB_NODE_INDEX", "0"}, {"AWS_BATCH_JOB_NUM_NODES", "2"}}, "AWS_BATCH_JOB_NODE_INDEX"},
      {{{"JAX_PROCESS_ID", "0"}, {"JAX_NUM_PROCESSES", "4"}}, "JAX_PROCESS_ID"},
      {{{"PADDLE_TRAINER_ID", "1"}, {"PADDLE_TRAINERS_NUM", "2"}}, "PADDLE_TRAINER_ID"},
      {{{"TPU_WORKER_ID", "0"}, {"TPU_WORKER_HOSTNAMES", "t0,t1"}}, "TPU_WORKER_ID"},
      {{{"NEW_RANK", "0"}, {"NEW_SIZE", "2"}}, "NEW_RANK"},
      {{{"PMI_ID", "1"}}, "PMI_ID"},
      {{{"_CONDOR_PROCNO", "0"}, {"_CONDOR_NPROCS", "1"}, {"SM_CURRENT_HOST", "algo-1"}, {"SM_HOSTS", "[\"algo-1\"]"}},
       ""},
      {{{"CI_NODE_INDEX", "1"}, {"CI_NODE_TOTAL", "4"}, {"CI_JOB_ID", "7"}, {"CI_CONCURRENT_ID", "0"}}, ""},
      {{{"CIRCLE_NODE_INDEX", "0"}, {"CIRCLE_NODE_TOTAL", "2"}, {"CIRCLE_BUILD_NUM", "12"}}, ""},
      {{{"SEMAPHORE_JOB_INDEX", "1"}, {"SEMAPHORE_JOB_COUNT", "4"}, {"BUILD_ID", "7"}, {"BUILD_NUM", "7"}}, ""},
      {{{"SLURM_ARRAY_TASK_ID", "1"}, {"SLURM_ARRAY_TASK_COUNT", "4"}, {"SLURM_PROCID", "0"}, {"SLURM_NNODES", "2"}},
       ""},
      {{{"AWS_BATCH_JOB_ARRAY_INDEX", "1"}, {"AWS_BATCH_JOB_ARRAY_SIZE", "4"}, {"BATCH_ID", "1"}, {"BATCH_SIZE", "8"}},
       ""},
      {{{"CLOUD_RUN_TASK_INDEX", "0"}, {"CLOUD_RUN_TASK_COUNT", "3"}, {"GPU_ID", "0"}, {"GPU_COUNT", "4"}}, ""},
      {{{"NCCL_IB_GID_INDEX", "3"}, {"NCCL_BUFFSIZE", "8388608"}, {"XDG_SESSION_ID", "2"}, {"HISTSIZE", "1000"}}, ""},
      {{{"KAFKA_BROKER_ID", "1"}, {"KAFKA_NUM_PARTITIONS", "8"}, {"KAFKA_HOSTS", "a,b"}}, ""},
  };
  for (const auto& [environment, refused] : cases) {
    SCOPED_TRACE(environment.begin()->first);
    const Result who = run({PATH_who_am_i}, environment), started = run({PATH_mnrun, "true"}, environment);
    EXPECT_EQ(who.status, refused.empty() ? 0 : 2) << who.out;
    EXPECT_EQ(started.status, refused.empty() ? 0 : 2) << started.err;
    if (refused.empty()) continue;
    EXPECT_SAYS(who.out, "WRONG: no complete row of a launcher, but " + refused + "=");
    EXPECT_SAYS(started.err, "mnrun: " + refused + "=");
    EXPECT_EQ(run({PATH_mnrun, "--nnodes", "1", "true"}, environment).status, 0);  // the command line has it all
  }
}

TEST(Mnrun, MakesAtMostMaxRestartsMoreAttempts) {
  const std::string script = "echo start $MNRUN_RESTART_COUNT; if [ $RANK = 1 ]; then exit 5; fi; exec sleep 60";
  const Result never_right = standalone(2, script, {"--max-restarts", "2"});
  EXPECT_EQ(never_right.status, 5);
  EXPECT_EQ(lines_with(never_right.out, "[rank 1] "), (Words{"start 0", "start 1", "start 2"}));
  EXPECT_EQ(occurrences(never_right.err, "ended with exit status 5"), 3u) << never_right.err;

  const Result right =
      standalone(2, "echo start $MNRUN_RESTART_COUNT; if [ $RANK$MNRUN_RESTART_COUNT = 10 ]; then kill -9 $$; fi",
                 {"--max-restarts", "2"});
  EXPECT_EQ(right.status, 0) << right.err;
  EXPECT_EQ(lines_with(right.out, "[rank 1] "), (Words{"start 0", "start 1"}));
}

TEST(Mnrun, MakesNoOtherAttemptAfterABadCommandLine) {
  for (const std::string status : {"2", "77"}) {
    const Result r = standalone(2, "echo start; exit " + status, {"--max-restarts", "3"});
    EXPECT_EQ(r.status, std::stoi(status));
    EXPECT_LE(occurrences(r.out, "start"), 2u) << r.out;
  }
}

TEST(Mnrun, TenMegabytesOfLinesAreIntact) {
  const Result r = standalone(7, "seq -f \"$RANK %07.0f .................................................\" 1 25000");
  EXPECT_EQ(r.status, 0) << r.err;
  std::vector<int> next(7, 1);
  std::istringstream in(r.out);
  for (std::string line; std::getline(in, line);) {
    int prefix = -1, rank = -1, number = -1;
    char dots[64] = {};
    ASSERT_EQ(std::sscanf(line.c_str(), "[rank %d] %d %d %60s", &prefix, &rank, &number, dots), 4) << line;
    ASSERT_EQ(prefix, rank);
    ASSERT_EQ(number, next[static_cast<std::size_t>(rank)]++);
    ASSERT_EQ(std::string(dots), std::string(49, '.'));
  }
  EXPECT_EQ(next, std::vector<int>(7, 25001));
  EXPECT_GT(r.out.size(), 10u << 20);
}

TEST(Mnrun, AStoppedReaderStopsTheWriters) {
  const TemporaryFolder folder;
  const std::string fifo = folder / "out";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const multinode::Descriptor never_read(open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  Process mnrun(
      {"sh", "-c", "exec '" PATH_mnrun "' --standalone --nproc-per-node 3 sh -c 'trap \"\" TERM; exec yes' > " + fifo});
  const auto number = [&](const std::string& file, const std::string& name) {
    const std::string text = text_of("/proc/" + std::to_string(mnrun.pid()) + "/" + file);
    const auto at = text.find(name);
    return at == text.npos ? 0L : std::stol(text.substr(at + name.size()));
  };
  // It fills its buffer, and then reads nothing for a fifth of a second.
  long last = -1;
  int unchanged = 0;
  EXPECT_TRUE(soon([&] {
    const long now = number("io", "rchar:");
    unchanged = now == last && mnrun.find("RANK", "2") ? unchanged + 1 : 0;
    last = now;
    return unchanged >= 20;
  }));
  EXPECT_LT(last, 20 << 20);
  EXPECT_LT(number("status", "VmHWM:"), 64 << 10);
  mnrun.signal(SIGTERM);
  EXPECT_TRUE(soon([&] { return number("status", "ShdPnd:") == 0; }));
  mnrun.signal(SIGTERM);  // kills the processes; mnrun drops their output
  EXPECT_EQ(mnrun.wait().status, 143);
}

TEST(Mnrun, AClosedReaderEndsTheProcesses) {
  const Result r =
      run({"bash", "-c", "set -o pipefail; '" PATH_mnrun "' --standalone --nproc-per-node 2 yes | head -n 1"});
  EXPECT_TRUE(is_like(r.out, "\\[rank [01]\\] y\n")) << r.out;
  EXPECT_EQ(r.status, 128 + SIGPIPE);
  EXPECT_SAYS(r.err, "(SIGPIPE)");
}

TEST(Mnrun, AFullDiskUnderTheOutputIsAFailureOfTheRun) {
  const Result r =
      run({"sh", "-c",
           "'" PATH_mnrun "' --standalone --nproc-per-node 2 sh -c 'echo lost; sleep 1; echo $RANK' >/dev/full"});
  EXPECT_EQ(r.status, 1);
  EXPECT_EQ(r.err, "mnrun: some of the output could not be written: No space left on device\n");
}

TEST(Mnrun, LogsAsTorchrunPlacesThem) {
  const TemporaryFolder folder;
  const Result r = standalone(3, "echo out $RANK; echo err $RANK >&2",
                              {"--log-dir", folder.path().string(), "--rdzv-id", "ignored"});
  EXPECT_EQ(occurrences(r.out, "out"), 3u);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));

  const Words options{"--log-dir", folder.path().string(), "--rdzv-id", "job", "--tee"};
  const std::filesystem::path logs = folder / "job" / "attempt_0";
  const auto with_tee = [&](const std::string& streams) {
    Words all = options;
    all.push_back(streams);
    return standalone(2, "echo out $RANK; echo err $RANK >&2", all);
  };
  EXPECT_EQ(with_tee("2").status, 0);
  EXPECT_FALSE(std::filesystem::exists(logs / "0" / "stdout.log"));
  const Result both = with_tee("3");
  for (const std::string rank : {"0", "1"}) {
    EXPECT_EQ(text_of(logs / rank / "stdout.log"), "out " + rank + "\n");
    EXPECT_EQ(text_of(logs / rank / "stderr.log"), "err " + rank + "\n");
    EXPECT_EQ(lines_with(both.out, "[rank " + rank + "] "), Words{"out " + rank});
    EXPECT_EQ(lines_with(both.err, "[rank " + rank + "] "), Words{"err " + rank});
  }
  folder.write("precious", "keep me");  // another user's link leads there
  std::filesystem::remove(logs / "1" / "stdout.log");
  std::filesystem::create_hard_link(folder / "precious", logs / "1" / "stdout.log");
  EXPECT_EQ(with_tee("3").status, 0);
  EXPECT_EQ(text_of(logs / "1" / "stdout.log"), "out 1\n");
  EXPECT_EQ(text_of(folder / "precious"), "keep me\n");
  chmod(folder.path().c_str(), 0777);
  const Result refused = with_tee("3");
  EXPECT_EQ(refused.status, 2);
  EXPECT_EQ(refused.err, "mnrun: --log-dir " + folder.path().string() +
                             ": every user can write to it, and exchange what is in it: name a folder in it\n");
  chmod(folder.path().c_str(), 01777);                              // as /tmp
  if (lchown((folder / "job").c_str(), 65534, 65534) != 0) return;  // not root
  EXPECT_SAYS(with_tee("3").err, "job: it is another user's, in a folder in which every user can write");
}

TEST(Mnrun, MakesAFolderOfLogsWhereNoneIsGiven) {
  const TemporaryFolder folder;
  const Result r = standalone(2, "echo out", {"--tee", "3", "--rdzv-id", "job"}, {{"TMPDIR", folder.path()}});
  const multinode::testing::Match logs = multinode::testing::match_in(r.err, "mnrun: log files are in (.*)\n");
  ASSERT_FALSE(logs.empty()) << r.err;
  EXPECT_TRUE(logs[1].starts_with(folder.path().string()));
  EXPECT_EQ(text_of(logs[1] + "/attempt_0/1/stdout.log"), "out\n");
}

// mnrun as the first process of a container: its pid is 1.
class MnrunAsInit : public ::testing::Test {
 protected:
  void SetUp() override {
    if (run({"unshare", "--pid", "--fork", "--mount-proc", "true"}).status != 0)
      GTEST_SKIP() << "needs the permission to make a pid namespace";
  }
  // In util-linux 2.37, what unshare --fork starts ignores SIGINT and SIGTERM, and mnrun would, too.
  static Words in_container(Words words) {
    words.insert(words.begin(),
                 {"unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "env", "--default-signal=INT,TERM"});
    return words;
  }
  // The process that has pid 1 in the namespace of `unshare`.
  static pid_t init_of(const Process& unshare) {
    const std::string children =
        "/proc/" + std::to_string(unshare.pid()) + "/task/" + std::to_string(unshare.pid()) + "/children";
    std::string pid;
    EXPECT_TRUE(soon([&] { return !(pid = text_of(children)).empty(); }));
    return std::stoi(pid);
  }
};

TEST_F(MnrunAsInit, ASignalEndsItWhileItWaitsForNodes) {
  const FreePort port;
  for (const int number : {SIGTERM, SIGINT}) {
    Process container(in_container(agent(2, 0, port, {"true"})));
    const pid_t init = init_of(container);
    const std::string table = "/proc/" + std::to_string(init) + "/net/tcp";
    char listens[32];
    std::snprintf(listens, sizeof listens, "0100007F:%04X 00000000:0000 0A", unsigned{port.number()});
    ASSERT_TRUE(soon([&] { return text_of(table).find(listens) != std::string::npos; }));
    kill(init, number);
    EXPECT_EQ(container.wait().status, 128 + number);
  }
}

TEST_F(MnrunAsInit, ForwardsSignalsAndReturnsTheStatus) {
  EXPECT_EQ(run(in_container({PATH_mnrun, "--standalone", "sh", "-c", "exit 5"})).status, 5);
  Process container(
      in_container(on_one_node(2, "trap 'echo got usr1' USR1; echo ready; while :; do sleep 60 & wait $!; done")));
  expect_each(container, "ready");
  kill(init_of(container), SIGUSR1);
  expect_each(container, "got usr1");
  kill(init_of(container), SIGTERM);
  const Result r = container.wait();
  EXPECT_EQ(r.status, 143);
  EXPECT_SAYS(r.err, "received signal 15 (SIGTERM)");
}

TEST_F(MnrunAsInit, WaitsForOrphans) {
  const TemporaryFolder folder;
  const std::string pids = folder / "pids";
  const Result r = run(in_container(mnrun_with(
      {"--standalone"}, "for i in 1 2 3; do (setsid sh -c 'echo $$ >> " + pids + "' &); done;" + "until [ \"$(cat " +
                            pids + " | wc -l)\" = 3 ]; do :; done;" + "for pid in $(cat " + pids +
                            "); do while [ -e /proc/$pid ]; do :; done; done; echo none")));
  EXPECT_EQ(r.out, "none\n") << r.err;
  EXPECT_EQ(r.status, 0);
}

TEST(Mnrun, UsesIpv6WhereThatIsTheOnlyLoopback) {
  if (run({"unshare", "--net", "sh", "-c", "PATH=$PATH:/sbin:/usr/sbin; ip link"}).status != 0)
    GTEST_SKIP() << "needs iproute2 and the permission to make a network namespace";
  const Result r = run({"unshare", "--net", "sh", "-c",
                        "PATH=$PATH:/sbin:/usr/sbin; ip link set lo up && ip addr del 127.0.0.1/8 dev lo && "
                        "'" PATH_mnrun "' --standalone --nproc-per-node 2 sh -c 'echo $MASTER_ADDR $MNRUN_STORE'"});
  EXPECT_EQ(occurrences(r.out, "] ::1 [::1]:"), 2u) << r.all();
}

TEST(Mnrun, RankZeroGetsTheInput) {
  const Result r = run(
      {"sh", "-c", "echo word | '" PATH_mnrun "' --standalone --nproc-per-node 2 sh -c 'read line; echo got $line'"});
  EXPECT_EQ(lines_with(r.out, "[rank 0] "), Words{"got word"});
  EXPECT_EQ(lines_with(r.out, "[rank 1] "), Words{"got"});
}

TEST(Mnrun, DoesNotWaitForADaemonThatKeepsThePipeOpen) {
  const TemporaryFolder folder;
  const std::string file = folder / "pid";
  const Result r = standalone(2, "if [ $RANK = 0 ]; then setsid sh -c 'echo $$ > " + file +
                                     "; exec sleep 60' & fi;"
                                     "while [ ! -s " +
                                     file + " ]; do :; done; echo done");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(occurrences(r.out, "done"), 2u);
  EXPECT_LT(r.seconds.count(), 50);
  EXPECT_EQ(kill(std::stoi(text_of(file)), SIGKILL), 0);  // it left the process group and is still running
}

// A stranger who knows the user's ID, the run's name and the port, beside a run that ends with status 3.
TEST(MnrunTwoNodes, AStrangerForgesNothing) {
  for (const std::string id : {"", "a"}) {
    const TemporaryFolder folder;
    const std::string go = folder / "go", secret = folder / "secret";
    Words options{"--secret-file", secret};
    if (!id.empty()) options.insert(options.end(), {"--rdzv-id", id});
    const TwoNodes nodes("echo ready; until [ -e " + go + " ]; do sleep 0.05; done; exit 3", options);
    ASSERT_TRUE(nodes.are_ready());
    const multinode::Endpoint store{"127.0.0.1", nodes.port.number()};
    for (const std::string& guess :
         {std::string(), "agents of user " + std::to_string(geteuid()), "agents of run " + id, std::string(64, '0')})
      EXPECT_THROW(multinode::TcpStore(store, 60s, {.token = guess})
                       .compare_set("mnrun/" + id + "/0/verdict", "",
                                    R"({"status":0,"text":"","again":false,"kill_delay_ms":0})"),
                   multinode::StoreRefused);
    std::ofstream(go) << "";
    nodes.end_with(3);
    struct stat status {};
    ASSERT_EQ(stat(secret.c_str(), &status), 0);
    EXPECT_EQ(status.st_mode & 0777, 0600u);
  }
}

// Another user listens where node 0 should, with all that he knows.
TEST(MnrunTwoNodes, AFalseNodeZeroIsFoundOut) {
  const multinode::TcpStoreServer false_server("127.0.0.1", 0, {"agents of user " + std::to_string(geteuid())});
  const TemporaryFolder folder;
  const Result result = run({PATH_mnrun, "--nnodes", "2", "--node-rank", "1", "--secret-file", folder / "secret",
                             "--rdzv-endpoint", "127.0.0.1:" + std::to_string(false_server.port()), "true"});
  EXPECT_EQ(result.status, 2);
  EXPECT_SAYS(result.err, "have another secret");
}

TEST(MnrunTwoNodes, RanksAreNumberedNodeByNode) {
  TwoNodes run(
      "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE; echo $MASTER_PORT "
      "$MNRUN_RUN_ID");
  const auto [a, b] = run.end_with(0);
  const std::string common = lines_with(a.out, "[rank 0] ").at(1);
  EXPECT_TRUE(is_like(common, "\\d+ \\w+")) << common;
  EXPECT_EQ(lines_with(a.out, "[rank 0] "), (Words{"0/3 0/2 0/2", common}));
  EXPECT_EQ(lines_with(a.out, "[rank 1] "), (Words{"1/3 1/2 0/2", common}));
  EXPECT_EQ(lines_with(b.out, "[rank 2] "), (Words{"2/3 0/1 1/2", common}));
}

TEST(MnrunTwoNodes, AKilledProcessEndsBothNodes) {
  TwoNodes run("echo ready; exec sleep 60");
  ASSERT_TRUE(run.are_ready());
  kill(process_of(*run.node[1], "2"), SIGSEGV);
  const auto [a, b] = run.end_with(128 + SIGSEGV);
  EXPECT_LT(a.seconds.count(), 60) << "it waited for their sleep";
  EXPECT_SAYS(a.err, "rank 2 (node 1, ");
  EXPECT_SAYS(a.err, "was killed by signal 11 (SIGSEGV)\n");
  EXPECT_EQ(a.err, b.err);
}

TEST(MnrunTwoNodes, ReportsAKilledAgentAlsoInALaterAttempt) {
  for (const int victim : {0, 1})
    for (const std::string start : {"0", "1"}) {
      TwoNodes run("if [ $RANK = 0 ] && [ $MNRUN_RESTART_COUNT != " + start + " ]; then exit 4; fi;" +
                       "echo ready $MNRUN_RESTART_COUNT; exec sleep 60",
                   {"--max-restarts", "2"});
      ASSERT_TRUE(run.are_ready(start));
      const auto begin = std::chrono::steady_clock::now();
      run.node[victim]->signal(SIGKILL);
      const Result r = run.node[1 - victim]->wait();
      EXPECT_LT(std::chrono::steady_clock::now() - begin, 30s);
      EXPECT_EQ(r.status, 1);
      EXPECT_SAYS(r.err, "the mnrun of node " + std::to_string(victim) + " (host ");
      EXPECT_SAYS(r.err, " is gone: lost the connection to it");
    }
}

// A rank's failure is noticed before that of the agent, which hangs: the other waits for its next attempt when it dies.
TEST(MnrunTwoNodes, ReportsAnAgentThatIsLostBetweenAttempts) {
  for (const int victim : {0, 1}) {
    TwoNodes run("echo ready; exec sleep 60", {"--max-restarts", "2"});
    ASSERT_TRUE(run.are_ready());
    const pid_t rank = process_of(*run.node[1 - victim], victim == 0 ? "2" : "0");
    run.node[victim]->signal(SIGSTOP);
    kill(rank, SIGKILL);
    if (victim == 1) {
      ASSERT_TRUE(run.node[0]->wait_for("attempt 1 begins"));
    }
    run.node[victim]->signal(SIGKILL);
    const Result r = run.node[1 - victim]->wait();
    EXPECT_EQ(r.status, 1);
    EXPECT_SAYS(r.err, "the mnrun of node " + std::to_string(victim) + " (host ");
    EXPECT_LT(r.seconds.count(), 60);
  }
}

TEST(MnrunTwoNodes, ASignalToOneBeforeTheNextAttemptEndsBoth) {
  TwoNodes run(lingers, {"--max-restarts", "3"});
  ASSERT_TRUE(run.are_ready());
  kill(process_of(*run.node[0], "1"), SIGKILL);
  ASSERT_TRUE(run.node[1]->wait_for("rank 2\\] ends"));
  run.node[1]->signal(SIGTERM);
  for (const Result& r : run.end_with(143)) EXPECT_SAYS(r.err, "node 1 (host ");
}

TEST(MnrunTwoNodes, BeginTheNextAttemptTogether) {
  TwoNodes run(
      "echo start $MNRUN_RESTART_COUNT; if [ $MNRUN_RESTART_COUNT = 2 ]; then exit 0; fi;"
      "if [ $RANK = $MNRUN_RESTART_COUNT ]; then exit 4; fi; exec sleep 60",
      {"--max-restarts", "2"});
  const auto [a, b] = run.end_with(0);
  EXPECT_EQ(lines_with(a.out, "[rank 0] ").back(), "start 2");
  EXPECT_EQ(lines_with(b.out, "[rank 2] ").back(), "start 2");
  EXPECT_SAYS(b.err, "; attempt 2 begins (--max-restarts 2)");
}

TEST(MnrunTwoNodes, BothReportWhatOneNodeLacks) {
  for (const auto& [lacks, status] :
       {std::pair(Words{"only-on-the-head"}, 127), {{"--tee", "3", "--log-dir", "/proc/only", "true"}, 2}}) {
    const FreePort port;
    Process head(agent(2, 0, port, {"true"})), other(agent(2, 1, port, lacks));
    for (Process* node : {&head, &other}) {
      const Result r = node->wait();
      EXPECT_EQ(r.status, status);
      EXPECT_SAYS(r.err, "node 1 (host ");
      EXPECT_SAYS(r.err, status == 127 ? "'only-on-the-head'" : "/proc/only");
      EXPECT_EQ(occurrences(r.err, "\n"), 1u) << r.err;
    }
  }
}

TEST(MnrunTwoNodes, ReportsAMissingNode) {
  const FreePort port;
  const auto node = [&](int rank) { return run(agent(3, rank, port, {"--timeout", "0.6", "true"})); };
  const Result head = node(0);
  EXPECT_EQ(head.status, 1);
  EXPECT_SAYS(head.err, "node ranks 1, 2 of 3 did not come");
  const Result other = node(1);
  EXPECT_EQ(other.status, 1);
  EXPECT_SAYS(other.err, "node 0, which hosts the store, did not come");
  // A service's address, which no interface of this machine has, and which it cannot reach.
  const Result behind = run(agent(2, 0, port, {"--timeout", "0.6", "true"}, "192.0.2.7"));
  EXPECT_SAYS(behind.err, "node rank 1 of 2 did not come to 192.0.2.7");
}

TEST(MnrunTwoNodes, DifferentNumbersOfNodesAreRefused) {
  const FreePort port;
  const auto words = [&](int nodes, int rank) {
    return agent(nodes, rank, port, {"--timeout", "100", "echo", "started"});
  };
  Process head(words(2, 0)), other(words(3, 1));
  EXPECT_TRUE(soon([&] { return !is_running(head.pid()) || !is_running(other.pid()); }));
  for (Process* const process : {&head, &other})
    if (is_running(process->pid())) process->signal(SIGTERM);  // it waits for its second node
  const Result results[] = {head.wait(), other.wait()};
  const std::string said = results[0].all() + results[1].all();  // by the one that came second
  EXPECT_EQ(occurrences(said, "--nnodes is 3 here and 2 on node 0 (") +
                occurrences(said, "--nnodes is 2 here and 3 on node 1 ("),
            1u)
      << said;
  EXPECT_TRUE(results[0].status == 2 || results[1].status == 2) << said;
  EXPECT_EQ(said.find("started"), std::string::npos);
}

TEST(MnrunTwoNodes, TwoOfTheSameRankOrOfDifferentRunsAreRefused) {
  const FreePort port;
  const auto words = [&](int rank, const std::string& id) {
    return agent(3, rank, port, {"--rdzv-id", id, "--timeout", "100", "true"});
  };
  Process head(words(0, "a")), first(words(1, "a"));
  const Result other_run = run(words(2, "b"));
  EXPECT_EQ(other_run.status, 2);
  EXPECT_SAYS(other_run.err, "do not run --rdzv-id 'b' as this one does, or have another secret");
  Process second(words(1, "a"));
  // One of the two with rank 1 comes first. The other one is refused, and the run waits for its third node meanwhile.
  std::counting_semaphore<2> ended(0);
  const auto end_of = [&](Process& process) {
    return std::async(std::launch::async, [&] {
      const Result result = process.wait();
      ended.release();
      return result;
    });
  };
  std::future<Result> end_of_first = end_of(first), end_of_second = end_of(second);
  ended.acquire();
  Process third(words(2, "a"));
  const Result one = end_of_first.get(), two = end_of_second.get();
  EXPECT_EQ(std::min(one.status, two.status), 0) << one.err << two.err;
  EXPECT_EQ(std::max(one.status, two.status), 2) << one.err << two.err;
  EXPECT_NE((one.err + two.err).find("node rank 1 is taken by host "), std::string::npos) << one.err << two.err;
  EXPECT_EQ(head.wait().status, 0);
  EXPECT_EQ(third.wait().status, 0);
}

}  // namespace mnrun_program_test
