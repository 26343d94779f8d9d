// World, Watchdog and run(), in whole programs.
#include <multinode/store/secret.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world.hpp>
#include <test/support/faults.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <thread>

namespace {

using namespace multinode::testing;
using namespace std::chrono_literals;

constexpr char program[] = PATH_world_program;

#define EXPECT_SAYS_ONCE(text, what) EXPECT_EQ(occurrences(text, what), 1u) << text

Ranks::End run_ranks(int count, std::vector<std::string> options) {
  options.insert(options.begin(), program);
  return Ranks(Starter::bare, count, options).wait();
}

// Processes with individual environment variables.
struct Group {
  Group() = default;
  Group(int size, const std::vector<std::string>& options, const std::map<std::string, std::string>& environment = {}) {
    for (int rank = 0; rank < size; ++rank) start_rank(rank, size, options, environment);
  }
  FreePort free_port;
  std::string port = std::to_string(free_port.number());
  std::vector<std::unique_ptr<Process>> processes;
  std::string executable = program;
  void start(std::map<std::string, std::string> environment, std::vector<std::string> options = {}) {
    environment.insert({{"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", port}});
    options.insert(options.begin(), executable);
    processes.push_back(std::make_unique<Process>(options, environment));
  }
  void start_rank(int rank, int size, std::vector<std::string> options = {},
                  std::map<std::string, std::string> environment = {}) {
    environment.insert(
        {{"RANK", std::to_string(rank)}, {"LOCAL_RANK", std::to_string(rank)}, {"WORLD_SIZE", std::to_string(size)}});
    start(environment, std::move(options));
  }
  std::vector<Result> wait() {
    std::vector<Result> results;
    for (auto& process : processes) results.push_back(process->wait());
    return results;
  }
};

std::string output_of(const std::vector<Result>& results) {
  std::string all;
  for (const Result& result : results) all += result.all();
  return all;
}

// The only line about the deadline. A line about the stall may precede it.
std::string deadline_in(const std::string& output) {
  EXPECT_SAYS_ONCE(output, "timed out after ");
  return match_in(output, "timed out after [^\n]*").at(0);
}

TEST(World, MeetsAndNumbersNodes) {
  for (const int size : {1, 2, 7}) {
    const Ranks::End end = run_ranks(size, {"--steps", "20"});
    EXPECT_EQ(end.status, 0) << end.output;
    for (int rank = 0; rank < size; ++rank)
      EXPECT_SAYS_ONCE(end.output, "rank " + std::to_string(rank) + " of " + std::to_string(size) +
                                       ", node 0 of 1, local size " + std::to_string(size));
  }
}

// Each run's rank 1 meets its own rank 0, though both runs use one port.
TEST(World, TwoRunsOnOnePortDoNotMixIfTheyHaveIds) {
  Group group;
  for (const auto& [rank, id] : {std::pair(0, "a"), {1, "b"}, {1, "a"}}) {
    group.start_rank(rank, 2, {}, {{"TORCHELASTIC_RUN_ID", id}});
    if (id[0] == 'b') {
      ASSERT_TRUE(group.processes.back()->wait_for("it serves another run"));
    }
  }
  const std::vector<Result> results = group.wait();
  for (const std::size_t r : {0u, 1u, 2u}) EXPECT_EQ(results[r].status, r == 1 ? 2 : 0) << results[r].all();
}

TEST(World, GathersMoreThanOneValueOfTheStoreHolds) {
  const Ranks::End end = run_ranks(4, {"--gather", "1500000"});
  EXPECT_EQ(end.status, 0) << end.output;
}

#ifdef MULTINODE_HAVE_MPI
// Among the variables of a batch script and of a pod, which mpirun's take precedence over.
TEST(World, MeetsThroughMpi) {
  const std::map<std::string, std::string> outer{
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PET_NNODES", "2"}};
  const Ranks::End end = Ranks(Starter::mpirun, 3, {program, "--steps", "20"}, outer).wait();
  EXPECT_EQ(end.status, 0) << end.output;
  EXPECT_SAYS_ONCE(end.output, "rank 2 of 3, node 0 of 1, local size 3");
}

TEST(World, MeetsOverMpiOnlyInAProgramWithTheCommunicator) {
  const Ranks::End end = Ranks(Starter::mpirun, 2, {PATH_world_program_alone}).wait();
  EXPECT_EQ(end.status, 2) << end.output;
  EXPECT_SAYS(end.output, "the ranks cannot meet over MPI: include multinode/communicator.hpp, or set MASTER_ADDR");
}

TEST(World, TheMpirunOfAnotherMpiIsRefused) {
  if (!is_open_mpi()) GTEST_SKIP() << "built with MPICH";
  if (run({"bash", "-c", "type -P mpirun.mpich"}).status != 0) GTEST_SKIP() << "no MPICH (apt install mpich)";
  const Result result = run({"mpirun.mpich", "-n", "2", program});
  EXPECT_EQ(result.status, 2);
  EXPECT_SAYS(result.all(), " of 2 (PMI_SIZE), MPI says 0 of 1: this program was built with Open MPI");
}
#endif

// Through the store of the real torchrun's agent: two agents with two processes each.
class WorldUnderTorchrun : public ::testing::TestWithParam<const char*> {};

TEST_P(WorldUnderTorchrun, TwoAgentsOfTwo) {
  const std::string torchrun = in_torch("torchrun");
  if (!std::filesystem::exists(torchrun)) GTEST_SKIP() << "no " << torchrun << "; ci/setup all installs it";
  const FreePort free_port;
  const std::string port = std::to_string(free_port.number());
  std::vector<std::unique_ptr<Process>> agents;
  for (const std::string node : {"0", "1"})
    agents.push_back(std::make_unique<Process>(
        std::vector<std::string>{"sh", "-c",
                                 "exec \"$0\" --nnodes 2 --node-rank $2 --nproc-per-node 2 --rdzv-backend $3 "
                                 "--rdzv-endpoint 127.0.0.1:$4 --rdzv-id world_test --master-addr 127.0.0.1 "
                                 "--master-port $4 --no-python -- \"$1\" --steps 3",
                                 torchrun, program, node, GetParam(), port}));
  std::string output;
  for (auto& agent : agents) {
    const Result result = agent->wait();
    EXPECT_EQ(result.status, 0);
    output += result.all();
  }
  for (int rank = 0; rank < 4; ++rank)
    EXPECT_SAYS_ONCE(
        output, "rank " + std::to_string(rank) + " of 4, node " + std::to_string(rank / 2) + " of 2, local size 2");
}
INSTANTIATE_TEST_SUITE_P(Rendezvous, WorldUnderTorchrun, ::testing::Values("static", "c10d"),
                         [](const auto& info) { return info.param; });

#ifdef MULTINODE_HAVE_MPI
TEST(World, ARankThatIsStoppedBeforeMpiIsNamed) {
  const Result result = run(under_mpirun(3, {"sh", "-c",
                                             "[ ${OMPI_COMM_WORLD_RANK:-$PMI_RANK} != 1 ] || kill -STOP $$; exec " +
                                                 std::string(program) + " --timeout 3"}));
  EXPECT_NE(result.status, 0);
  EXPECT_SAYS(result.all(), "MPI did not connect the ranks within 3 s: a signal has stopped rank 1 (pid ");
}
#endif

TEST(World, MeetsThroughTheSameFileRepeatedly) {
  const TemporaryFolder folder;
  const std::string path = folder / "store";
  for (int run = 0; run < 3; ++run) {  // the second and the third find the file of the run before
    Group group(3, {"--rendezvous", "file:" + path});
    for (const Result& result : group.wait()) EXPECT_EQ(result.status, 0) << result.all();
  }
  Group without_rank_0;
  without_rank_0.start_rank(1, 3, {"--rendezvous", "file:" + path, "--timeout", "3"});
  const Result alone = without_rank_0.wait()[0];
  EXPECT_EQ(alone.status, 1) << alone.all();
  EXPECT_SAYS(alone.err, "no answer from the store at ");
}

// Whatever connects to the port of a run: the run ends right, and a process that wanted to join ends alone.
TEST(World, StrangersDisturbNobody) {
  const char* times = std::getenv("MULTINODE_STRANGERS");  // a campaign sets 100
  for (int i = 0; i < (times ? std::stoi(times) : 2); ++i) {
    const TemporaryFolder folder;
    const std::map<std::string, std::string> environment{{"MULTINODE_SECRET", "the secret of a test"}};
    Group group(3, {"--until", folder / "strangers have come"}, environment);
    ASSERT_TRUE(group.processes[0]->wait_for("step 10\n"));

    const multinode::Endpoint port{"127.0.0.1", static_cast<std::uint16_t>(std::stoi(group.port))};
    const auto connect = [](auto&, auto&) {};
    std::list<multinode::TcpClient> idle;
    for (int c = 0; c < 1000; ++c) idle.emplace_back(port, 60s, connect);
    std::mt19937 random(static_cast<unsigned>(i));
    const multinode::Secret secret{"the secret of a test", ""};
    const std::string magic(multinode::protocol::magic), attempt = "run//0", token = token_for(secret, "job /0");
    using multinode::protocol::Hello;
    const auto hello = encode(proved(Hello{"job /0", attempt, 1, 3}, "0123456789abcdef"));
    std::string noise(1000, '\0');
    std::generate(noise.begin(), noise.end(), [&] { return static_cast<char>(random()); });
    for (const std::string& bytes :
         {noise, magic + noise, magic + std::string(4, '\xff') + noise, magic + hello + noise,
          magic + hello + encode(multinode::protocol::Request{multinode::protocol::Operation::fail, {}, "a lie"})}) {
      multinode::TcpClient stranger(port, 60s, connect);
      multinode::Deadline deadline(60s);
      stranger.send(bytes, deadline, "disturbing");
    }
    using multinode::TcpStore;
    EXPECT_THROW(TcpStore(port, 60s), multinode::StoreRefused) << "without a token";
    EXPECT_THROW(TcpStore(port, 60s, {.token = token}), multinode::StoreRefused) << "not a rank";
    EXPECT_THROW(TcpStore(port, 60s, {"job /0", attempt, 1, 3}), multinode::StoreRefused) << "knows the job's number";
    EXPECT_THROW(TcpStore(port, 60s, {token_for(secret, "job 8/0"), attempt, 1, 3}), multinode::StoreRefused)
        << "of another job";
    EXPECT_THROW(TcpStore(port, 60s, {token, attempt, 1, 3}), multinode::RankTaken);
    for (int rank = 0; rank < 3; ++rank) group.start_rank(rank, 3, {}, environment);  // a second run with the same port
    for (int rank = 3; rank < 6; ++rank)
      ASSERT_TRUE(group.processes[static_cast<std::size_t>(rank)]->wait_for("world_program: .*\n"));
    std::ofstream(folder / "strangers have come") << "";

    const auto results = group.wait();
    for (std::size_t r = 0; r < 3; ++r) {
      EXPECT_EQ(results[r].status, 0) << results[r].all();
      EXPECT_EQ(results[r].err, "");
      EXPECT_SAYS_ONCE(results[r].out, "rank " + std::to_string(r) + " of 3");
      EXPECT_NE(results[r + 3].status, 0);
      EXPECT_EQ(results[r + 3].out, "");
      // Rank 0 serves the store, so a second one cannot listen.
      EXPECT_SAYS_ONCE(results[r + 3].err,
                       r == 0 ? "cannot listen on 127.0.0.1:" + group.port + ": Address already in use; give two runs"
                              : "rank " + std::to_string(r) + " (RANK): the store at 127.0.0.1:" + group.port +
                                    " refuses this process: rank " + std::to_string(r) + " is taken by host ");
      EXPECT_EQ(occurrences(results[r + 3].err, "\n"), 1u) << results[r + 3].err;
    }
  }
}

TEST(World, WithoutASecretOneLineSaysWhatAStrangerCanDo) {
  const std::map<std::string, std::string> none{{"MULTINODE_SECRET", "none"}},
      no_home{{"MULTINODE_SECRET", ""}, {"MULTINODE_SECRET_FILE", ""}, {"HOME", "/dev/null"}};
  for (const auto& environment : {none, no_home}) {
    Group group(2, {"--steps", "1"}, environment);
    const auto results = group.wait();
    for (const Result& result : results) EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS_ONCE(output_of(results), "WARNING: no secret keeps strangers out (");
    EXPECT_SAYS(output_of(results), environment.contains("HOME") ? "(/dev/null/" : "(MULTINODE_SECRET=none): ");
  }
}

TEST(World, AMissingRankIsNamed) {
  Group group;
  group.start_rank(0, 3, {"--timeout", "5"});
  group.start_rank(2, 3, {"--timeout", "5"});
  const auto results = group.wait();
  for (const Result& result : results) EXPECT_EQ(result.status, 1);
  EXPECT_SAYS_ONCE(deadline_in(output_of(results)), "rank 1 of 3 never came");
}

// A service's address, which no interface has, and which this machine cannot reach.
TEST(World, Rank0MeetsAtAnAddressThatItCannotReachItself) {
  const FreePort port;
  const Result alone =
      run({program, "--timeout", "3", "--rendezvous", "tcp:192.0.2.7:" + std::to_string(port.number())});
  EXPECT_EQ(alone.status, 0) << alone.all();
}

TEST(World, AMissingRank0IsNamedAsTheStore) {
  Group group;
  group.start_rank(1, 2, {"--timeout", "1"});
  const auto results = group.wait();
  EXPECT_EQ(results[0].status, 1);
  EXPECT_SAYS_ONCE(results[0].err, "rank 1 cannot reach rank 0, which serves the store at 127.0.0.1:" + group.port);
}

TEST(World, OtherProgramsAndWorldSizesAreRefused) {
  Group sizes;
  sizes.start_rank(0, 2);
  sizes.start_rank(1, 3);
  auto results = sizes.wait();
  EXPECT_EQ(results[0].status, 2) << output_of(results);
  EXPECT_SAYS_ONCE(output_of(results), "the ranks differ: world size is 2 on rank 0");

  Group builds;
  builds.start_rank(0, 2);
  builds.executable = PATH_world_program_other;
  builds.start_rank(1, 2);
  results = builds.wait();
  EXPECT_EQ(results[0].status, 2) << output_of(results);
  EXPECT_EQ(results[1].status, 2) << output_of(results);
  EXPECT_SAYS_ONCE(output_of(results), "the ranks differ: program is ");
}

TEST(World, AnExceptionEndsAllRanksWithItsStatus) {
  const struct {
    std::string option;
    int status;
    std::string says;
  } cases[] = {{"--throw", 1, "thrown on purpose"},
               {"--usage", 2, "an option is wrong on purpose"},
               {"--absent", 77, "a device is absent on purpose"}};
  for (const auto& c : cases)
    for (const int rank : {0, 2}) {
      const auto results = Group(3, {c.option, std::to_string(rank)}).wait();
      for (const Result& result : results) {
        EXPECT_EQ(result.status, c.status) << output_of(results);
        EXPECT_LT(result.seconds.count(), 50) << "it waited for the deadline";
      }
      EXPECT_SAYS_ONCE(output_of(results), c.says);
      EXPECT_SAYS_ONCE(output_of(results), "world_program: rank " + std::to_string(rank) + " (host ");
    }
}

TEST(World, ARankInAnotherCallIsNamed) {
  const Ranks::End end = run_ranks(3, {"--other", "2"});
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_SAYS(end.output, "World: rank 0 is in 'step', but rank 2 in 'another step': all ranks make the same calls");
}

TEST(World, OneWrongRankFailsAllRanks) {
  for (const Result& result : Group(3, {"--wrong", "1"}).wait()) EXPECT_EQ(result.status, 1) << result.all();
}

TEST(World, ARankThatExitsSilentlyIsNamed) {
  const auto results = Group(3, {"--leave", "2"}).wait();
  EXPECT_EQ(results[0].status, 1);
  EXPECT_EQ(results[1].status, 1);
  EXPECT_SAYS_ONCE(output_of(results), "rank 2 (host ");
}

TEST(Watchdog, NamesTheLateRank) {
  Group first(3, {"--late", "0", "--timeout", "5"}), last(3, {"--late", "2", "--timeout", "5"});  // at the same time
  for (const int late : {0, 2}) {
    const auto results = (late == 0 ? first : last).wait();
    for (const Result& result : results) EXPECT_EQ(result.status, 1) << output_of(results);
    const std::string line = deadline_in(output_of(results));
    EXPECT_SAYS_ONCE(line, "timed out after 5 s: rank ");
    EXPECT_SAYS_ONCE(line, "; rank " + std::to_string(late) + " (host ");
    EXPECT_SAYS_ONCE(line, "is late: it is in its own code, after ");
  }
}

TEST(Watchdog, ReportsALateRankOnceBeforeTheDeadline) {
  Ranks ranks(Starter::bare, 4, {program, "--late", "2", "--nap", "11000", "--timeout", "16"});
  const Ranks::End end = ranks.wait();
  EXPECT_EQ(end.status, 0) << "the rank was late but within the deadline" << end.output;
  EXPECT_SAYS_ONCE(end.output, "world_program: stalled: rank ");
  EXPECT_SAYS_ONCE(end.output, " s in step (collective number 2); ");
  EXPECT_SAYS_ONCE(end.output, "; rank 2 (host ");
  EXPECT_SAYS_ONCE(end.output, ") is late: it is in its own code, after first meeting (collective number 1)");
  EXPECT_SAYS_ONCE(end.output, "rank 2 of 4, node 0 of 1");
}

TEST(Watchdog, NamesTheStoppedRank) {
  std::list<Ranks> runs;  // they wait for their verdicts at the same time
  const std::vector<std::string> endless{program, "--steps", "1000000", "--timeout", "5"};
  for (const int stopped : {0, 1}) {
    Ranks& ranks = runs.emplace_back(Starter::bare, 3, endless);
    ASSERT_TRUE(ranks.wait_for("step (50)\n"));
    ranks.signal(stopped, SIGSTOP);
  }
  for (const int stopped : {0, 1}) {
    const Ranks::End end = runs.front().wait();
    runs.pop_front();
    EXPECT_TRUE(end.survivors_ended) << end.output;
    // Not in one expression: `output` joins both streams, in any order.
    EXPECT_SAYS(end.output, "rank " + std::to_string(stopped));
    EXPECT_SAYS(end.output, "is frozen");
  }
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // they need memory of their own
// A verdict comes when the process has no memory left for a thread.
TEST(Watchdog, EndsItsProcessWithoutANewThread) {
  const TemporaryFolder folder;
  Group group(2, {"--until", folder / "never"});
  ASSERT_TRUE(group.processes[0]->wait_for("step 50\n"));
  const pid_t pid = group.processes[0]->pid();
  std::ifstream file("/proc/" + std::to_string(pid) + "/statm");
  rlim_t pages = 0;
  ASSERT_TRUE(file >> pages);
  const rlim_t bytes = pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE)) + (200 << 10);
  const rlimit limit{bytes, bytes};
  ASSERT_EQ(prlimit(pid, RLIMIT_AS, &limit, nullptr), 0);
  group.processes[1]->signal(SIGKILL);
  const Result result = group.processes[0]->wait();
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS_ONCE(result.err, "rank 1 (host ");
}
#endif

TEST(Watchdog, TwoThreadsAnnounceTheirOwnOperations) {
  multinode::World world("world_test", multinode::Launch{}, multinode::World::Options{});
  const auto before = world.watchdog().last().collectives;
  constexpr std::uint64_t times = 1'000'000;
  {
    const std::jthread other([&] {
      for (std::uint64_t i = 0; i < times; ++i) const auto inside = world.watchdog().enter_world("its own");
    });
    for (std::uint64_t i = 0; i < times; ++i) const auto inside = world.watchdog().enter("of the program");
  }
  EXPECT_EQ(world.watchdog().last().collectives, before + times);
  const auto outer = world.watchdog().enter("outer");
  EXPECT_EQ(error_text<std::logic_error>([&] { const auto inner = world.watchdog().enter("inner"); }),
            "Watchdog::enter() of 'inner' inside 'outer'");
}

TEST(World, AHostThatDidNotAnswerIsNotAnEmptyName) {
  const multinode::World world("world_test", multinode::Launch{}, {1s, "", true});
  for (int again = 0; again < 2; ++again) EXPECT_THROW(world.host(1), multinode::StoreTimeout);
}

// The rank's connection waits for the answer to its hello, as when the store's process was frozen: its process comes
// again.
TEST(World, ARankThatConnectsAgainIsNotRefusedBecauseOfItself) {
  multinode::TcpStoreServer server("127.0.0.1", 0, {.token = "t", .ranks_only = true});
  const multinode::protocol::Hello hello{"t", "run/0", 1, 2, 1000, "host h, pid 7", "h"};
  const multinode::Endpoint place{"127.0.0.1", server.port()};
  const multinode::TcpStore first(place, 60s, hello);
  multinode::TcpStore second(place, 60s, hello);
  second.start_receiving();
  EXPECT_TRUE(second.send_status({.operation = multinode::protocol::Operation::beat, .status = 1}, true));
  EXPECT_EQ(second.receive_event(60s).value().status, multinode::protocol::Status::pulse);
  EXPECT_THROW(multinode::TcpStore(place, 60s, hello), multinode::RankTaken) << "the rank has sent a heartbeat";
  auto another = hello;
  another.rank = 0;
  const multinode::TcpStore third(place, 60s, another);
  another.where = "host h, pid 8";
  EXPECT_THROW(multinode::TcpStore(place, 60s, another), multinode::RankTaken) << "another process";
}

}  // namespace
