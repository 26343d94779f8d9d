// who_waits: the explanation of states that are made up, and its command line. See also who_waits_programs_test.py.
#include <packing.hpp>
#include <verdict.hpp>

#include <multinode/base/text.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <signal.h>

#include <chrono>

namespace who_waits_test {

using namespace multinode::testing;
using namespace who_waits;

// A rank that has made so many collectives of MPI_COMM_WORLD.
RankState rank(int number, int size, std::uint64_t collectives = 0) {
  RankState rank_state{.rank = number, .host = "node" + std::to_string(number / 8), .pid = 1000 + number};
  rank_state.recorded = true;
  rank_state.world_size = size;
  rank_state.process = 'R';
  rank_state.quiet = 60;
  rank_state.stack = "in work <- main";
  rank_state.communicators.push_back({world_id, collectives, size, number});
  return rank_state;
}
RankState in(RankState rank_state, const Call& call) {
  rank_state.waits.push_back({call, {}, true, 61});
  return rank_state;
}
Call all_reduce(std::uint64_t number) {
  return {.kind = Kind::MPI_Allreduce, .communicator = world_id, .sequence = number, .bytes = 4 << 20};
}
Call receive(int from, int tag) { return {.kind = Kind::MPI_Recv, .peer = from, .tag = tag, .communicator = world_id}; }

TEST(WhoWaits, AThousandRanksAreExplainedOnOneScreen) {
  std::vector<RankState> ranks;
  for (int i = 0; i < 1000; ++i) ranks.push_back(in(rank(i, 1000, 57), all_reduce(57)));
  ranks[412] = in(rank(412, 1000, 56), receive(3, 7));
  ranks[412].process = 'T';
  for (RankState& rank_state : ranks) {  // what they remember of the past
    for (std::uint64_t n = 1; n <= rank_state.communicators[0].collectives; ++n)
      rank_state.communicators[0].history.push_back(all_reduce(n));
    for (int i = 1; i <= 50; ++i) rank_state.traffic.push_back({world_id, (rank_state.rank + i) % 1000, 7, 5, 5});
  }
  const auto start = std::chrono::steady_clock::now();
  std::vector<RankState> arrived;
  for (const RankState& rank_state : ranks) arrived.push_back(unpacked<RankState>(packed(rank_state)));
  const Verdict verdict = explain(arrived);
  const auto lines = groups(arrived);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(5));
  EXPECT_EQ(verdict.cause, "deadlock");
  EXPECT_TRUE(verdict.certain);
  EXPECT_LE(verdict.lines.size() + lines.size(), 10u);
  EXPECT_SAYS(lines[0],
              "999 ranks in MPI_Allreduce, call 57 of MPI_COMM_WORLD, 4 MiB, for up to 61 s   (ranks 0-411, 413-999)");
  EXPECT_SAYS(lines[1], "rank 412 stopped by a signal in MPI_Recv from rank 3, tag 7, for 61 s   (node51, pid 1412)");
  EXPECT_SAYS(verdict.lines[0], "waits for 412");
  EXPECT_SAYS(verdict.lines.back(), "first difference: rank 412 has made 56 calls in MPI_COMM_WORLD, the others 57");
}

TEST(WhoWaits, ARankIsNotStuckIfItsMessageMayStillCome) {
  const auto moves = [](const std::vector<RankState>& ranks) { return !explain(ranks).certain; };
  // Rank 1 computes, or tests again and again: it may still send.
  EXPECT_TRUE(moves({in(rank(0, 2), receive(1, 7)), rank(1, 2)}));
  RankState tests = rank(1, 2);
  tests.polled = receive(0, 9);
  EXPECT_TRUE(moves({in(rank(0, 2), receive(1, 7)), tests}));
  // It hangs, but one of its threads is outside, or its record is incomplete, or it makes unknown calls.
  const RankState other = in(rank(1, 2), receive(0, 7));
  EXPECT_FALSE(moves({in(rank(0, 2), receive(1, 7)), other}));
  for (const auto flag : {&RankState::other_thread, &RankState::incomplete, &RankState::unknown_calls}) {
    RankState uncertain = other;
    uncertain.*flag = true;
    EXPECT_TRUE(moves({in(rank(0, 2), receive(1, 7)), uncertain}));
  }
  // A thread that is not recorded may call what the others wait for.
  RankState ahead = in(rank(0, 2, 2), all_reduce(2)), behind = in(rank(1, 2, 1), receive(0, 7));
  EXPECT_FALSE(moves({ahead, behind}));
  behind.incomplete = true;
  EXPECT_TRUE(moves({ahead, behind}));
  // It has sent the message, which is under way.
  RankState sent = other;
  sent.traffic.push_back({world_id, 0, 7, 1, 0});
  EXPECT_TRUE(moves({in(rank(0, 2), receive(1, 7)), sent}));
  EXPECT_EQ(explain({in(rank(0, 2), receive(1, 7)), sent}).cause, "late");
  RankState leads = other;  // what leaders of MPI_Intercomm_create exchange is no message of the program
  leads.traffic.push_back({leaders_id, 0, 7, 1, 0});
  EXPECT_EQ(explain({in(rank(0, 2), receive(1, 7)), leads}).lines.at(1),
            "rank 1 does not send to 0: rank 1 is in MPI_Recv from rank 0, tag 7");
  // The message has another tag; with a wildcard it fits.
  EXPECT_FALSE(moves({in(rank(0, 2), receive(1, 8)), sent}));
  EXPECT_TRUE(moves({in(rank(0, 2), receive(1, any)), sent}));
  EXPECT_TRUE(moves({in(rank(0, 2), receive(any, any)), sent}));
  // An earlier receive gets the only message.
  RankState two = in(rank(0, 2), receive(1, 7));
  two.waits[0].call.sequence = 2;
  two.outstanding.push_back(receive(1, 7));
  two.outstanding[0].sequence = 1;
  EXPECT_FALSE(moves({two, sent}));
  EXPECT_SAYS(explain({two, sent}).lines.at(1), "rank 0 took it with its MPI_Recv from rank 1");
  two.waits[0].requests = {two.outstanding[0], std::exchange(two.waits[0].call, {.kind = Kind::MPI_Waitall})};
  EXPECT_SAYS(explain({two, sent}).lines.at(1), "rank 1 does not send to 0: ");  // it waits for both
}

TEST(WhoWaits, MainThreadsThatWaitForEachOtherAreFoundWhileOtherThreadsGoOn) {
  const auto beats = [](RankState one) {  // its other thread is in a call of another communicator
    one.other_thread = one.others_apart = true;
    one.waits.push_back({{.kind = Kind::MPI_Recv, .peer = 0, .tag = 1, .communicator = 77}, {}, true, 0.5});
    one.waits.back().apart = true;
    return one;
  };
  const std::vector<RankState> ranks{beats(in(rank(0, 2), receive(1, 7))), beats(in(rank(1, 2), receive(0, 7)))};
  EXPECT_FALSE(explain(ranks).certain);
  const Verdict verdict = explain_main_threads(ranks, 60);
  EXPECT_TRUE(verdict.main_threads && !verdict.certain);
  EXPECT_SAYS(verdict.lines[0], "0 waits for 1, 1 waits for 0: deadlock");
  const auto found = [](std::vector<RankState> all) { return explain_main_threads(std::move(all), 60).main_threads; };
  EXPECT_FALSE(explain_main_threads(ranks, 62).main_threads);  // not for so long
  auto may_help = ranks;
  may_help[1].others_apart = false;
  EXPECT_FALSE(found(may_help));
  EXPECT_FALSE(found({ranks[0], beats(in(rank(1, 2), receive(any, 7)))}));  // a server
}

TEST(WhoWaits, ARankMayStillSendThatHasNotMadeTheCommunicatorYet) {
  RankState starts = rank(1, 2);
  starts.communicators.clear();
  starts = in(starts, {.kind = Kind::MPI_Init, .communicator = start_id, .sequence = 1});
  EXPECT_FALSE(explain({in(rank(0, 2), receive(any, any)), starts}).certain);
  EXPECT_FALSE(explain({in(rank(0, 2), receive(1, 7)), starts}).certain);
}

TEST(WhoWaits, TheStackTellsACallThatIsNotRecordedFromComputing) {
  RankState a = rank(0, 2), b = rank(1, 2);
  a.stack = "in ompi_comm_join <- PMPI_Comm_join <- main";
  b.stack = "in wait <- MPI_Bcast <- main";  // a wrapper of another library
  const Verdict verdict = explain({a, b});
  EXPECT_EQ(verdict.culprits, (std::vector{1, 0}));
  EXPECT_SAYS(verdict.lines.at(0), "rank 1 (node0, pid 1001) is computing outside of MPI and NCCL for 60 s: computing");
  EXPECT_SAYS(verdict.lines.at(1), "rank 0 (node0, pid 1000) is in a call of MPI that is not recorded for 60 s");
  a.stack = b.stack = "";
  EXPECT_EQ(explain({a, b}).cause, "cannot tell");
  EXPECT_SAYS(explain({a, b}).lines.at(0),
              "in no recorded call, and without its stack (gdb or eu-stack) it cannot be told");
}

TEST(WhoWaits, AnUnknownWaitIsSaid) {
  const Call wait{.kind = Kind::MPI_Wait};  // for a request that is not recorded
  const Verdict verdict = explain({in(rank(0, 2), wait), in(rank(1, 2), wait)});
  EXPECT_EQ(verdict.cause, "cannot tell");
  EXPECT_EQ(verdict.lines.at(0), "what rank 0 waits for is not recorded: it is in MPI_Wait");
}

TEST(WhoWaits, ACommunicatorWhoseCreationWasNotSeenProvesNothing) {
  const Call call{.kind = Kind::MPI_Barrier, .communicator = uncertain_id | 5, .sequence = 1};
  RankState a = in(rank(0, 2), call), b = in(rank(1, 2), call);
  a.communicators.push_back({uncertain_id | 5, 1, 2, 0, Sort::communicator, -1, {call}});
  Call other = call;
  other.kind = Kind::MPI_Bcast;
  b.communicators.push_back({uncertain_id | 5, 1, 2, 1, Sort::communicator, -1, {other}});
  EXPECT_FALSE(explain({a, b}).certain);
}

TEST(WhoWaits, CommunicatorsOfTheSameRanksAreToldApart) {
  std::vector<RankState> ranks;
  for (int i = 0; i < 2; ++i) {
    const std::uint64_t id = i == 0 ? 5 : 6;
    ranks.push_back(in(rank(i, 2), {.kind = Kind::MPI_Barrier, .communicator = id, .sequence = 1}));
    for (const std::uint64_t one : {5, 6}) {
      ranks[static_cast<std::size_t>(i)].communicators.push_back({one, one == id, 2, i});
      ranks[static_cast<std::size_t>(i)].communicators.back().made = one == 5 ? 8 : 7;
    }
  }
  EXPECT_SAYS(multinode::join(groups(ranks), "\n"), "call 1 of the communicator of ranks 0-1, number 1");
  EXPECT_SAYS(multinode::join(groups(ranks), "\n"), "call 1 of the communicator of ranks 0-1, number 2");
  for (RankState& one : ranks) one.communicators.at(one.communicators.size() - 2).name = "io";
  EXPECT_SAYS(multinode::join(groups(ranks), "\n"), "call 1 of the communicator 'io' of ranks 0-1");
  EXPECT_SAYS(multinode::join(groups(ranks), "\n"), "call 1 of the communicator of ranks 0-1, for");
  for (RankState& one : ranks) one.communicators.back().sort = Sort::window, one.communicators.back().place = "a.cpp:7";
  EXPECT_SAYS(multinode::join(groups(ranks), "\n"), "call 1 of the window made at a.cpp:7 of ranks 0-1, for");
  EXPECT_SAYS(explain(ranks).lines.at(2),
              "0 is not in MPI_Barrier, call 1 of the window made at a.cpp:7 of ranks 0-1: ");
}

TEST(WhoWaits, RanksOfNcclAreTranslated) {
  std::vector<RankState> ranks;  // NCCL's ranks count the other way
  const auto id = std::uint64_t{77};
  for (int i = 0; i < 3; ++i) {
    ranks.push_back(in(rank(i, 3), {.kind = Kind::cudaStreamSynchronize}));
    ranks.back().communicators.push_back({id, 0, 3, 2 - i, Sort::nccl});
  }
  ranks[0].traffic.push_back({id, 0, 0, 0, 1});  // has called ncclRecv from NCCL's rank 0, which is rank 2
  ranks[2] = rank(2, 3);
  ranks[2].communicators.push_back({id, 0, 3, 0, Sort::nccl});
  ranks[2].finalized = true;
  const Verdict verdict = explain(ranks);
  EXPECT_EQ(verdict.cause, "ended");
  EXPECT_SAYS(verdict.lines[0], "rank 2 has not called ncclSend to 0: rank 2 is past MPI_Finalize");
  // The receive is on another stream than the one that rank 0 waits for.
  ranks[0].traffic[0].tag = 5;
  ranks[0].waits[0].call.tag = 6;
  EXPECT_FALSE(explain(ranks).certain);
  ranks[0].waits[0].call.tag = 5;
  EXPECT_TRUE(explain(ranks).certain);
  ranks[2].finalized = false;  // it is late, and the explanation gives the reason
  EXPECT_EQ(explain(ranks).cause, "late");
  EXPECT_EQ(explain(ranks).lines.at(1), "  rank 2 has not called ncclSend to 0: rank 0 waits for it");
}

TEST(WhoWaits, TheOrderOfTwoCommunicatorsOnAStreamIsCompared) {
  // Each rank has called each communicator once; of those with one number the order is open, as in a group.
  const auto explained = [](std::array<std::int32_t, 2> first, std::array<std::int32_t, 2> second,
                            const Call& open = {}) {
    std::vector<RankState> ranks;
    for (int i = 0; i < 2; ++i) {
      ranks.push_back(in(rank(i, 2), {.kind = Kind::cudaStreamSynchronize, .tag = 5}));
      if (i == 1) ranks.back().outstanding = {open};
      for (const std::uint64_t id : {77, 78}) {
        const Call call{.kind = Kind::ncclAllReduce,
                        .tag = 5,
                        .receive_tag = (i ? second : first)[id - 77],
                        .communicator = id,
                        .sequence = 1};
        ranks.back().communicators.push_back({id, 1, 2, i, Sort::nccl, -1, {call}});
        ranks.back().communicators.back().made = static_cast<std::uint32_t>(id);
      }
    }
    return explain(ranks);
  };
  const Verdict verdict = explained({1, 2}, {2, 1});
  EXPECT_EQ(verdict.cause, "deadlock");
  EXPECT_FALSE(verdict.certain);
  EXPECT_SAYS(multinode::join(verdict.lines, "\n"),
              "stream, rank 1 has queued ncclAllReduce, call 1 of NCCL's communicator of ranks 0-1, number 2 before");
  EXPECT_EQ(explained({1, 2}, {1, 2}).cause, "started");
  EXPECT_EQ(explained({2, 1}, {1, 1}).cause, "started");
  EXPECT_SAYS(explained({1, 2}, {1, 2}, {.kind = Kind::ncclGroupEnd, .receive_tag = 2}).lines.at(1),
              "rank 1 has not ended its group with ncclAllReduce, call 1 of");
}

// Ranks that are in their call 200, which is this one.
RankState in_200(int number, Kind kind = Kind::MPI_Barrier) {
  RankState rank_state = in(rank(number, 3, 200), all_reduce(200));
  rank_state.communicators[0].history = {{.kind = kind, .communicator = world_id, .sequence = 200}};
  return rank_state;
}

TEST(WhoWaits, AMismatchIsOnlyCertainWhereNobodyCanMove) {
  RankState computes = in_200(1, Kind::MPI_Bcast);
  EXPECT_TRUE(explain({in_200(0), computes, in_200(2)}).certain);
  computes.waits.clear();
  const Verdict verdict = explain({in_200(0), computes, in_200(2)});
  EXPECT_EQ(verdict.cause, "mismatch");
  EXPECT_EQ(verdict.culprits, std::vector<int>{1});
  EXPECT_FALSE(verdict.certain);
  // The others have left it, and all have the next one.
  std::vector<RankState> later{in_200(0), in_200(1, Kind::MPI_Bcast), in_200(2)};
  for (RankState& one : later) one.communicators[0].collectives = 201, one.waits[0].call.sequence = 201;
  later[0].waits[0].call.sequence = 202, later[0].communicators[0].collectives = 202;
  EXPECT_SAYS(explain(later).lines.at(0), "before, the ranks have made different calls in MPI_COMM_WORLD:");
  RankState failed = in_200(1, Kind::MPI_Bcast);  // a call that returned an error, and did not happen
  failed.incomplete = true;
  EXPECT_FALSE(explain({in_200(0), failed, in_200(2)}).certain);
  RankState unknown_wait = in_200(1, Kind::MPI_Bcast);  // for a process that is not seen
  unknown_wait.waits[0].call = {.kind = Kind::MPI_Recv, .peer = unknown, .communicator = uncertain_id | 7};
  EXPECT_FALSE(explain({in_200(0), unknown_wait, in_200(2)}).certain);
}

TEST(WhoWaits, ARankThatDoesNotCallNcclCommInitRankIsNamed) {
  const Call start{.kind = Kind::ncclCommInitRank, .tag = 3, .communicator = 99};
  RankState ended = rank(1, 3);
  const auto with = [&](const RankState& rank_state) {
    return explain({in(rank(0, 3), start), rank_state, in(rank(2, 3), start)});
  };
  EXPECT_EQ(with(ended).cause, "late");
  ended.ended = 0;
  EXPECT_EQ(with(ended).cause, "ended");
  EXPECT_TRUE(with(ended).certain);
  EXPECT_SAYS(with(ended).lines[0], "rank 1 is not in ncclCommInitRank: rank 1 is gone: exit status 0");
  EXPECT_EQ(with(in(rank(1, 3), start)).cause, "started");
}

TEST(WhoWaits, ProcessesOfAnotherMpirunAreNamed) {
  EXPECT_EQ(explain({rank(0, 1), rank(1, 1)}).cause, "separate");
  EXPECT_EQ(explain({rank(1, 2)}).cause, "part");
  EXPECT_SAYS(explain({rank(1, 2)}).lines.at(0), "mpirun -n 2 who_waits -- ./program");
}

#ifdef PATH_waiting_programs
TEST(WhoWaits, ASignalAsksForAnExplanation) {
  Process process(under_mpirun(4, {PATH_who_waits, "--end", "--", PATH_waiting_programs, "* receive right 7"}));
  ASSERT_TRUE(process.wait_for("3 sums are right"));
  process.signal(SIGUSR1);  // mpirun forwards it; it asks again if the program did not hang yet
  while (!process.wait_for("deadlock", std::chrono::seconds(3)) && is_running(process.pid())) process.signal(SIGUSR1);
  const Result result = process.wait();
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.err, "who_waits: asked by a signal");
}

TEST(WhoWaits, StuckRanksAreReportedWhileOthersContinue) {
  const TemporaryFolder folder;
  std::string statements = "* self; 0 receive 1 7; 1 receive 0 7";
  for (int i = 0; i < 1000; ++i) statements += "; 2 nap 300; 2 barrier 1";
  Process process(under_mpirun(3, {PATH_who_waits, "--after", "2", "--", PATH_waiting_programs, statements}),
                  {{"HOME", folder.path().string()}});
  EXPECT_TRUE(process.wait_for("no progress of ranks 0-1 for 2 s"));
  EXPECT_TRUE(process.wait_for("0 waits for 1, 1 waits for 0: deadlock"));
  process.signal(SIGTERM);
  process.wait();
}

TEST(WhoWaits, BadCommandLinesAreRefused) {
  for (const auto& [command, says] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{"--after", "0", "--", "true"}, "--after must be from 0.5 to 1000000, not 0"},
           {{}, "a program is needed, after --"},
           {{"--after", "5", "./program"}, "the program goes after --: who_waits [options] -- ./program"},
           {{"--", "mpirun", "-n", "2", "true"}, "it goes behind mpirun: mpirun ... who_waits -- ./program"},
           {{"--", PATH_who_waits, "--", "true"}, "who_waits runs inside of who_waits: leave one of them out"},
           {{"--timeline", "a.png", "--", "true"}, "--timeline must be FILE.svg or FILE.json"},
           {{"--from", "1", "--", "true"}, "--from and --to need --timeline"},
           {{"--timeline", "a.svg", "--to", "5s", "--", "true"}, "not '5s'"},
           {{"--attach", "a", "--", "true"}, "it starts none after --"},
           {{"--afterwards", "1", "--", "true"}, "--afterwards"}}) {
    std::vector<std::string> all = {PATH_who_waits};
    all.insert(all.end(), command.begin(), command.end());
    const Result result = run(all);
    EXPECT_EQ(result.status, 2);
    EXPECT_SAYS(result.err, says);
  }
  EXPECT_SAYS(run({PATH_who_waits, "--timeline", "/no/such/a.svg", "--", "true"}).err, "/no/such/a.svg");
  EXPECT_EQ(run({PATH_who_waits, "--", "/no/such/program"}).status, 127);
  EXPECT_EQ(run({PATH_who_waits, "--", "sh", "-c", "exit 7"}).status, 7);
  EXPECT_EQ(run({PATH_who_waits, "--", "true"}).status, 0);
}

TEST(WhoWaits, APartOfTheProgramWithoutItIsSaidAtOnce) {
  if (run(under_mpirun(1, {"true", ":", "-n", "1", "true"})).status != 0)  // Debian 13's mpirun 5.0.7: SIGSEGV
    GTEST_SKIP() << "this mpirun cannot start two programs: mpirun -n 1 true : -n 1 true";
  const Result result = run(under_mpirun(1, {PATH_who_waits, "--", PATH_waiting_programs, "* nap 3000; * barrier", ":",
                                             "-n", "1", PATH_waiting_programs, "* nap 3000; * barrier"}));
  EXPECT_EQ(result.status, 0);
  EXPECT_SAYS(result.err, "was started without it: every part of the program needs who_waits --");
}
#endif

}  // namespace who_waits_test
