// who_waits: the message queues of a process, of a stand-in for an MPI, and what is concluded from them. See also
// attach_test.py, with real MPIs.
#include <queues.hpp>
#include <stacks.hpp>
#include <verdict.hpp>

#include <multinode/base/text.hpp>
#include <test/support/program_test.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

namespace who_waits_test {

using namespace multinode::testing;
using namespace who_waits;

#ifdef PATH_who_waits_queues
Queues queues_of_stand_in(const std::string& fault, const std::string& library = PATH_queue_library,
                          const std::string& program = PATH_queue_process) {
  Process rank({program, library, fault});
  if (!rank.wait_for("up")) throw std::runtime_error("the stand-in did not start");
  return queues_of(rank.pid(), PATH_who_waits_queues);
}

TEST(WhoWaitsQueues, AreReadThroughTheLibraryOfTheMpi) {
  const Queues queues = queues_of_stand_in("none");
  ASSERT_EQ(queues.problem, "");
  ASSERT_EQ(queues.communicators.size(), 1u);
  EXPECT_EQ(queues.communicators[0].name, "MPI_COMM_WORLD");
  EXPECT_EQ(queues.communicators[0].size, 2);
  EXPECT_EQ(queues.communicators[0].messages,
            (std::vector<QueuedMessage>{{Queue::sends, 1, 5}, {Queue::receives, 1, 7}, {Queue::unexpected, 1, 6}}));
}

TEST(WhoWaitsQueues, OfABrokenListEndNothing) {
  for (const char* const fault : {"circle", "crash"})
    EXPECT_SAYS(queues_of_stand_in(fault).problem, "they changed while they were read");
}

TEST(WhoWaitsQueues, AreReadWithNoRightsThatTheProcessHasNot) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can start another user's process";
  const TemporaryFolder folder;
  const std::string program = folder / "program", library = folder / "library.so";
  std::filesystem::permissions(folder.path(), std::filesystem::perms(0755));
  std::filesystem::copy_file(PATH_queue_process, program);
  std::filesystem::copy_file(PATH_queue_library, library);
  const Queues queues = queues_of_stand_in("user", library, program);
  ASSERT_EQ(queues.problem, "");
  EXPECT_EQ(queues.communicators.at(0).name, "as user 65534");
  Process boxed({"unshare", "-m", program, library, "none"});
  if (!boxed.wait_for("up")) GTEST_SKIP() << "this machine allows no mount namespaces";
  EXPECT_SAYS(queues_of(boxed.pid(), PATH_who_waits_queues).problem, "it is in a container: start who_waits there");
}

TEST(WhoWaitsQueues, ThatAreMissingAreSaid) {
  EXPECT_SAYS(queues_of_stand_in("none", "/no/such.so").problem, "/no/such.so, the library of its MPI for debuggers");
  const TemporaryFolder folder;
  const std::string stripped = folder / "stripped";
  ASSERT_EQ(run({"strip", "--strip-debug", "-o", stripped, PATH_queue_process}).status, 0);
  EXPECT_SAYS(queues_of_stand_in("none", PATH_queue_library, stripped).problem,
              "the debug information of its MPI is stripped ('Mpi' is missing)");
  Process other({"sleep", "600"});
  EXPECT_EQ(queues_of(other.pid(), PATH_who_waits_queues), Queues{});
  EXPECT_SAYS(queues_of(other.pid(), folder / "none").problem, "built without libdw");
}
#endif

// Two ranks or more, the last call of each, and its queues.
ProcessStacks process(int rank, const char* call, std::vector<QueuedMessage> messages, int size = 2,
                      const std::string& name = "MPI_COMM_WORLD", std::vector<int> members = {}) {
  ProcessStacks one{.rank = rank, .pid = 100 + rank, .host = "node1"};
  one.threads = {{{"main", "a.cpp:9"}, {call, ""}}};
  one.queues.communicators = {{name, rank, size, std::move(members), std::move(messages)}};
  return one;
}
std::string explained(const std::vector<ProcessStacks>& processes) {
  const std::vector<RankState> states = states_of(processes, 2);
  return multinode::join(groups(states), "\n") + "\n" + multinode::join(explain(states).lines, "\n");
}

TEST(WhoWaitsQueues, ExplainTwoReceives) {
  const std::string text = explained({process(0, "MPI_Recv", {{Queue::receives, 1, 7}}),
                                      process(1, "mpi_recv_", {{Queue::receives, 0, 8}, {Queue::unexpected, 0, 9}})});
  EXPECT_SAYS(text, "rank 0 in MPI_Recv from rank 1, tag 7 at a.cpp:9, for 2 s   (node1, pid 100)");
  EXPECT_SAYS(text, "0 waits for 1, 1 waits for 0: deadlock");
  EXPECT_SAYS(text, "it has sent one with tag 9, and 1 wants tag 8");
}

TEST(WhoWaitsQueues, ExplainASendThatOnlyItsReceiverShows) {  // as MPICH's MPI_Send
  EXPECT_SAYS(explained({process(0, "MPI_Send", {}),
                         process(1, "MPI_Recv", {{Queue::unexpected, 0, 5}, {Queue::receives, 0, 6}})}),
              "rank 0 in MPI_Send to rank 1, tag 5");
}

TEST(WhoWaitsQueues, AccuseNoRankThatMayMove) {
  const auto receive = [](int from) { return std::vector<QueuedMessage>{{Queue::receives, from, 7}}; };
  for (const char* const call : {"MPI_Test", "MPI_Irecv", "MPI_Barrier", "work"})
    EXPECT_FALSE(says(explained({process(0, "MPI_Recv", receive(1)), process(1, call, receive(0))}), "deadlock"));
  auto moving = process(1, "MPI_Recv", receive(0));
  moving.moves = true;
  EXPECT_FALSE(says(explained({process(0, "MPI_Recv", receive(1)), moving}), "deadlock"));
  auto threads = process(1, "MPI_Recv", receive(0));
  threads.threads.push_back({{"work", "a.cpp:3"}});
  EXPECT_FALSE(says(explained({process(0, "MPI_Recv", receive(1)), threads}), "deadlock"));
  // Of several receives it may wait for any; a message that is sent already is on its way.
  auto two = receive(0);
  two.push_back({Queue::receives, 2, 7});
  EXPECT_FALSE(says(
      explained({process(0, "MPI_Recv", receive(1), 3), process(1, "MPI_Waitany", two, 3), process(2, "work", {}, 3)}),
      "deadlock"));
  EXPECT_FALSE(says(explained({process(0, "MPI_Recv", receive(1)), process(1, "MPI_Send", {{Queue::sends, 0, 7}})}),
                    "deadlock"));
}

TEST(WhoWaitsQueues, TranslateRanksOnlyWhereTheCommunicatorIsKnown) {
  auto processes = [](bool members) {
    std::vector<ProcessStacks> all;
    for (int i = 0; i < 4; ++i) {
      all.push_back(process(i, "MPI_Recv", {{Queue::receives, 1 - i / 2, 7}}, 2, "half"));
      all[static_cast<std::size_t>(i)].queues.communicators[0].rank = i / 2;  // ranks 0 and 2, and 1 and 3
      if (members) all[static_cast<std::size_t>(i)].queues.communicators[0].members = {i % 2, i % 2 + 2};
    }
    return all;
  };
  EXPECT_SAYS(explained(processes(true)), "1 waits for 3, 3 waits for 1: deadlock");
  EXPECT_SAYS(explained(processes(true)),
              "rank 3 in MPI_Recv from rank 1, tag 7 in the communicator 'half' of ranks 1, 3");
  EXPECT_SAYS(explained(processes(false)), "in MPI_Recv from an unknown rank, tag 7");
  EXPECT_FALSE(says(explained(processes(false)), "deadlock"));
}

}  // namespace who_waits_test
