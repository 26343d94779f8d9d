// Which rank the arbiter blames; the test sets the clock.
#include <multinode/store/arbiter.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

using multinode::protocol::Progress;
using namespace std::chrono_literals;

namespace {

class ArbiterTest : public ::testing::Test {
 protected:
  // Ranks 0 to size - 1 join.
  void join(int size) {
    for (int r = 0; r < size; ++r) {
      EXPECT_EQ(arbiter_.join({"", "", r, size, 60'000, "pid " + std::to_string(r), "node"}, now_), "");
      beat(r, 0, 0);
    }
  }
  void beat(int rank, std::uint64_t sequence, std::uint64_t collectives, Progress::Wait wait = {}, int peer = -1) {
    arbiter_.beat(rank, {sequence, collectives, peer, 30'000, wait, "call", {}, 0}, now_);
  }
  // Ticks for 3 s, calling `beats` every half second, until there is a verdict.
  template <class Beats>
  std::string verdict(Beats&& beats) {
    for (int i = 0; i < 60 && !arbiter_.verdict(); ++i, now_ += 50ms) {
      if (i % 10 == 0) beats();
      arbiter_.tick(now_);
    }
    return arbiter_.verdict() ? arbiter_.verdict()->second : "";
  }

  multinode::Arbiter arbiter_;
  multinode::Arbiter::Time now_ = std::chrono::steady_clock::now();
};

constexpr auto expired = Progress::Wait::expired, long_one = Progress::Wait::long_one;

TEST_F(ArbiterTest, ARankCanBeTakenOnce) {
  join(2);
  EXPECT_EQ(arbiter_.join({"", "", 1, 2, 0, "another", "node"}, now_), "rank 1 is taken by pid 1");
  arbiter_.leave(1);
  EXPECT_NE(arbiter_.join({"", "", 1, 2, 0, "another", "node"}, now_), "");
  arbiter_.lose(1);
  EXPECT_FALSE(arbiter_.verdict()) << "it left in peace";
}

TEST_F(ArbiterTest, AConnectionThatBreaksBeforeItsFirstHeartbeatMayComeAgain) {
  const multinode::protocol::Hello hello{"", "", 0, 1, 0, "pid 1", "node"};
  EXPECT_EQ(arbiter_.join(hello, now_), "");
  arbiter_.lose(0);
  EXPECT_EQ(arbiter_.join(hello, now_), "");
  EXPECT_FALSE(arbiter_.verdict());
}

TEST_F(ArbiterTest, ADeadRankIsTheVerdictAndTheOnlyOne) {
  join(3);
  arbiter_.fail(0, 1, "the connection to rank 2 is lost", now_);
  arbiter_.lose(2);
  arbiter_.fail(1, 2, "too late", now_);
  EXPECT_EQ(arbiter_.verdict()->second, "rank 2 (pid 2) is gone: it was killed, or it exited without an error message");
}

TEST_F(ArbiterTest, AFailureIsTheVerdictAfterAMoment) {
  join(2);
  arbiter_.fail(1, 1, "out of memory", now_);
  EXPECT_FALSE(arbiter_.verdict());
  EXPECT_TRUE(arbiter_.busy());
  EXPECT_EQ(verdict([] {}), "rank 1 (pid 1): out of memory");
  EXPECT_EQ(arbiter_.verdict()->first, 1);
}

// Rank 1 is frozen, and rank 2 is late in its own code: it may wait for rank 1 by other means.
TEST_F(ArbiterTest, AFrozenRankComesBeforeALateOne) {
  join(3);
  const auto text = verdict([&] {
    beat(0, 5, 3, expired);
    beat(2, 4, 2);
  });
  EXPECT_SAYS(text, "rank 1 (pid 1) is frozen");
}

TEST_F(ArbiterTest, TheRankWithTheFewestCollectivesIsLate) {
  join(3);
  const auto text = verdict([&] {
    beat(0, 7, 4, expired);
    beat(1, 5, 3, expired);
    beat(2, 4, 2);
  });
  EXPECT_SAYS(text, "rank 2 (pid 2) is late: it is in its own code, after call (collective number 2)");
}

TEST_F(ArbiterTest, TheEndOfAChainOfPeersIsLate) {
  join(3);
  const auto text = verdict([&] {
    beat(0, 1, 0, expired, 1);
    beat(1, 1, 0, Progress::Wait::short_one, 2);
    beat(2, 2, 0);
  });
  EXPECT_SAYS(text, "rank 0 (pid 0) waits in call with rank 1; rank 2 (pid 2) is late: it is in its own code");
}

TEST_F(ArbiterTest, ALinkThatLosesDataIsNoDeadRank) {
  join(2);
  EXPECT_SAYS(verdict([&] {
                arbiter_.beat(0, {1, 0, 1, 30'000, expired, "send"}, now_);
                arbiter_.beat(1, {1, 0, 0, 0, {}, "recv"}, now_);
              }),
              "rank 1 (pid 1) is in recv with rank 0: what one sends does not reach the other (another tag, a "
              "firewall, or an MTU");
  arbiter_ = {};
  join(2);
  arbiter_.lose(1, "9 bytes were not acknowledged");
  EXPECT_EQ(arbiter_.verdict()->second, "the connection to rank 1 (pid 1) broke: 9 bytes were not acknowledged");
}

TEST_F(ArbiterTest, APeerOutsideOfTheWorldIsNoCrash) {
  join(1);
  EXPECT_SAYS(verdict([&] { beat(0, 1, 0, expired, 7); }), "waits in call with rank 7");
}

TEST_F(ArbiterTest, ARankThatHasEndedIsSaidSo) {
  join(2);
  beat(1, 2, 1);
  arbiter_.leave(1);
  EXPECT_SAYS(verdict([&] { beat(0, 3, 2, expired); }), "rank 1 (pid 1) is late: it has already ended");
}

// The process of the arbiter was frozen for a minute: heartbeats wait in its sockets.
TEST_F(ArbiterTest, ItsOwnFreezeIsNoFreezeOfTheRanks) {
  join(2);
  beat(0, 1, 1, expired);
  arbiter_.tick(now_);
  now_ += 1min;
  const auto text = verdict([&] {
    beat(0, 1, 1, expired);
    beat(1, 0, 0);
  });
  EXPECT_SAYS(text, "rank 1 (pid 1) is late");
}

// Its wait ended after the deadline, as when the run was suspended.
TEST_F(ArbiterTest, ARankThatHasMovedOnIsNotLate) {
  join(2);
  beat(0, 3, 2, expired);
  arbiter_.tick(now_);
  EXPECT_EQ(verdict([&] { beat(0, 5, 3), beat(1, 5, 3); }), "");
  EXPECT_FALSE(arbiter_.busy());
}

// Rank 1 is behind in the World's collectives, and ahead in those of its program.
TEST_F(ArbiterTest, CollectivesAreComparedWithinALane) {
  using multinode::protocol::Lane;
  join(2);
  const auto text = verdict([&] {
    arbiter_.beat(0, {3, 2, -1, 30'000, expired, "barrier", Lane::world, 7}, now_);
    arbiter_.beat(1, {19, 10, -1, 0, {}, "all_reduce", Lane::program, 1}, now_);
  });
  EXPECT_SAYS(text,
              "rank 0 (pid 0) waits in barrier (collective number 2); rank 1 (pid 1) is late: it is in all_reduce");
}

TEST_F(ArbiterTest, AStallIsReportedOnceByAWaitingRank) {
  join(3);
  int notices = 0;
  for (int again = 0; again < 2; ++again)
    EXPECT_EQ(verdict([&] {
                beat(0, 1, 1, long_one);
                beat(1, 1, 1, long_one);
                beat(2, 0, 0);
                if (const auto notice = arbiter_.take_notice()) {
                  ++notices;
                  EXPECT_LT(notice->first, 2);
                  EXPECT_SAYS(notice->second,
                              "has waited for 30 s in call (collective number 1); rank 2 (pid 2) is late");
                }
              }),
              "");
  EXPECT_EQ(notices, 1);
}

TEST_F(ArbiterTest, OneRankOfANodeSpeaks) {
  for (int r = 0; r < 4; ++r) {
    now_ += 10ms;
    EXPECT_EQ(arbiter_.join({"", "", r, 4, 0, "", "node " + std::to_string(r / 2)}, now_), "");
    beat(r, 0, 0);
  }
  arbiter_.lose(1);
  EXPECT_TRUE(arbiter_.prints_verdict(0));
  EXPECT_FALSE(arbiter_.prints_verdict(2)) << "rank 3 was heard later";
  EXPECT_TRUE(arbiter_.prints_verdict(3));
}

}  // namespace
