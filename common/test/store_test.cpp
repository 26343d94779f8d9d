// The contract of Store, tested with every store.
#include "torch_server.hpp"

#include <multinode/check.hpp>
#include <multinode/tcp_store.hpp>
#include <multinode/torch_store.hpp>
#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <latch>
#include <set>

using namespace multinode;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// The server of a test's clients.
struct Home {
  virtual ~Home() = default;
  virtual std::unique_ptr<Store> connect() = 0;
};

struct TcpHome : Home {
  TcpStoreServer server;
  std::unique_ptr<Store> connect() override {
    return std::make_unique<TcpStore>(Endpoint{"127.0.0.1", server.port()}, 100s);
  }
};

struct PrefixHome : TcpHome {
  std::unique_ptr<Store> connect() override {
    return std::make_unique<TcpStore>(Endpoint{"127.0.0.1", server.port()}, 20s,
                                      protocol::Hello{.generation = "run/0"});
  }
};

template <bool use_libuv>
struct TorchHome : Home {
  std::unique_ptr<Store> connect() override {
    return std::make_unique<TorchStore>(multinode::testing::TorchServer::shared(use_libuv).endpoint(), 100s);
  }
};

struct Kind {
  std::string name;
  std::function<std::unique_ptr<Home>()> make;
  bool torch = false;
  friend void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }
};

template <class T>
Kind kind(const std::string& name) {
  return {name, [] { return std::make_unique<T>(); }, name.starts_with("Torch")};
}

class StoreContract : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam().torch && !multinode::testing::TorchServer::installed())
      GTEST_SKIP() << multinode::testing::TorchServer::why_not();
    home_ = GetParam().make();
  }
  std::unique_ptr<Store> connect() { return home_->connect(); }
  // torch's server is shared by all tests.
  static std::string key(const std::string& name) {
    return std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()) + "/" + name;
  }
  std::unique_ptr<Home> home_;
};

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

TEST_P(StoreContract, OneClientGetsTheValueOfAnother) {
  const auto a = connect(), b = connect();
  std::string binary(256, '\0');
  for (int i = 0; i < 256; ++i) binary[static_cast<std::size_t>(i)] = static_cast<char>(i);
  std::string large(Store::max_value, 'x');
  for (std::size_t i = 0; i < large.size(); ++i) large[i] = static_cast<char>(i * 2654435761u >> 13);
  for (const auto& value : {std::string("text"), std::string(), binary, large, std::string("again")}) {
    a->set(key("k"), value);
    EXPECT_TRUE(b->get(key("k"), 10s) == value) << value.size() << " bytes";
    EXPECT_TRUE(a->get(key("k"), 0ms) == value) << value.size() << " bytes";
  }
}

TEST_P(StoreContract, KeysAreBytes) {
  const auto a = connect(), b = connect();
  const std::string odd("\0\n\xff \"", 5);
  const std::string longest(Store::max_key - key("").size() - 8, 'k');
  a->set(key(odd), "1");
  a->set(key(""), "2");
  a->set(key(longest), "3");
  EXPECT_EQ(b->get(key(odd), 10s), "1");
  EXPECT_EQ(b->get(key(""), 10s), "2");
  EXPECT_EQ(b->get(key(longest), 10s), "3");
}

TEST_P(StoreContract, GetWaitsForTheValue) {
  const auto a = connect(), b = connect();
  a->set(key("other"), "0");
  auto got = std::async(std::launch::async, [&] { return b->get(key("late"), 100s); });
  EXPECT_THROW(a->get(key("late"), 50ms), StoreTimeout);  // also gives the waiter time to start waiting
  const auto start = Clock::now();
  a->set(key("late"), "here");
  EXPECT_EQ(got.get(), "here");
  EXPECT_LT(milliseconds_since(start), 50'000);
}

TEST_P(StoreContract, GetEndsAtItsDeadlineAndNamesTheKey) {
  const auto a = connect();
  for (const auto timeout : {0ms, 1ms, 150ms}) {
    const auto start = Clock::now();
    try {
      a->get(key("absent"), timeout);
      FAIL() << "a value came from nowhere";
    } catch (const StoreTimeout& error) {
      EXPECT_NE(std::string(error.what()).find("absent"), std::string::npos) << error.what();
    }
    EXPECT_GE(milliseconds_since(start), static_cast<double>(timeout.count()));
    EXPECT_LT(milliseconds_since(start), static_cast<double>(timeout.count()) + 20'000);
  }
  EXPECT_THROW(a->get(key("absent"), -5s), StoreTimeout);
  a->set(key("present"), "1");
  EXPECT_EQ(a->get(key("present"), std::chrono::milliseconds::max()), "1");
}

TEST_P(StoreContract, WaitNeedsAllKeys) {
  const auto a = connect(), b = connect();
  const std::vector<std::string> keys{key("1"), key("2"), key("3"), key("2")};
  b->wait({}, 0ms);
  a->set(key("1"), "");
  a->set(key("3"), "");
  try {
    b->wait(keys, 50ms);
    FAIL() << "one key is missing";
  } catch (const StoreTimeout& error) {
    EXPECT_NE(std::string(error.what()).find(key("2")), std::string::npos) << error.what();
  }
  auto all = std::async(std::launch::async, [&] { b->wait(keys, 100s); });
  EXPECT_THROW(a->get(key("never"), 50ms), StoreTimeout);
  EXPECT_EQ(all.wait_for(0s), std::future_status::timeout);
  a->set(key("2"), "");
  all.get();
  b->wait(keys, 0ms);
}

TEST_P(StoreContract, AddCounts) {
  const auto a = connect(), b = connect();
  EXPECT_EQ(a->add(key("n"), 5), 5);
  EXPECT_EQ(b->add(key("n"), -7), -2);
  EXPECT_EQ(a->add(key("n"), 0), -2);
  EXPECT_EQ(b->get(key("n"), 10s), "-2");
  a->set(key("m"), "40");
  EXPECT_EQ(a->add(key("m"), 2), 42);
  EXPECT_EQ(a->add(key("large"), std::int64_t{1} << 62), std::int64_t{1} << 62);
}

TEST_P(StoreContract, AddRefusesText) {
  const auto a = connect();
  a->set(key("text"), "twelve");
  if (GetParam().torch) {
    EXPECT_THROW(a->add(key("text"), 1), StoreLost);  // torch's server closes the connection
    EXPECT_THROW(a->set(key("other"), ""), StoreLost);
    return;
  }
  EXPECT_THROW(a->add(key("text"), 1), StoreRefused);
  EXPECT_EQ(a->get(key("text"), 0ms), "twelve");
  a->add(key("large"), std::numeric_limits<std::int64_t>::max());
  EXPECT_THROW(a->add(key("large"), 1), StoreRefused);
  EXPECT_EQ(a->add(key("large"), -1), std::numeric_limits<std::int64_t>::max() - 1);
}

TEST_P(StoreContract, CompareSet) {
  const auto a = connect(), b = connect();
  EXPECT_EQ(a->compare_set(key("c"), "something", "x"), "");  // absent is not "something"
  EXPECT_EQ(a->compare_set(key("c"), "same", "same"), "");
  EXPECT_THROW(a->get(key("c"), 0ms), StoreTimeout);
  EXPECT_EQ(a->compare_set(key("c"), "", "first"), "first");
  EXPECT_EQ(b->compare_set(key("c"), "", "second"), "first");
  EXPECT_EQ(b->compare_set(key("c"), "first", "third"), "third");
  EXPECT_EQ(b->compare_set(key("c"), "third", "third"), "third");
  EXPECT_EQ(a->get(key("c"), 10s), "third");
  a->set(key("e"), "");
  EXPECT_EQ(a->compare_set(key("e"), "", "full"), "full");  // "" means absent or empty
}

TEST_P(StoreContract, CompareSetWakesWaiters) {
  const auto a = connect(), b = connect();
  auto got = std::async(std::launch::async, [&] { return b->get(key("w"), 100s); });
  EXPECT_THROW(a->get(key("w"), 50ms), StoreTimeout);
  EXPECT_EQ(a->compare_set(key("w"), "something", "wrong"), "");  // sets nothing, so wakes no client
  EXPECT_EQ(got.wait_for(50ms), std::future_status::timeout);
  const auto start = Clock::now();
  a->compare_set(key("w"), "", "now");
  EXPECT_EQ(got.get(), "now");
  EXPECT_LT(milliseconds_since(start), 50'000);
}

TEST_P(StoreContract, TooLargeIsRefusedAndChangesNothing) {
  const auto a = connect();
  a->set(key("k"), "1");
  EXPECT_THROW(a->set(key("k"), std::string(Store::max_value + 1, 'x')), StoreRefused);
  EXPECT_THROW(a->set(std::string(Store::max_key + 1, 'x'), "1"), StoreRefused);
  EXPECT_THROW(a->compare_set(key("k"), "1", std::string(Store::max_value + 1, 'x')), StoreRefused);
  EXPECT_EQ(a->get(key("k"), 0ms), "1");
}

TEST_P(StoreContract, ThirtyTwoClientsAdd) {
  constexpr int clients = 32, times = 25;
  std::vector<std::future<std::vector<std::int64_t>>> running;
  for (int c = 0; c < clients; ++c)
    running.push_back(std::async(std::launch::async, [&] {
      const auto store = connect();
      std::vector<std::int64_t> sums;
      for (int i = 0; i < times; ++i) sums.push_back(store->add(key("n"), 1));
      return sums;
    }));
  std::set<std::int64_t> all;
  for (auto& each : running)
    for (const auto sum : each.get()) all.insert(sum);
  EXPECT_EQ(all.size(), clients * times);  // no two clients saw the same sum
  EXPECT_EQ(*all.begin(), 1);
  EXPECT_EQ(*all.rbegin(), clients * times);
  EXPECT_EQ(connect()->get(key("n"), 0ms), std::to_string(clients * times));
}

TEST_P(StoreContract, ThirtyTwoClientsCompareSetOneWins) {
  constexpr int clients = 32;
  std::vector<std::future<std::string>> running;
  std::latch all_here(clients);
  for (int c = 0; c < clients; ++c)
    running.push_back(std::async(std::launch::async, [&, c] {
      const auto store = connect();
      all_here.arrive_and_wait();
      return store->compare_set(key("leader"), "", "client " + std::to_string(c));
    }));
  int winners = 0;
  const auto leader = connect()->get(key("leader"), 20s);
  for (int c = 0; c < clients; ++c) {
    const auto value = running[static_cast<std::size_t>(c)].get();
    EXPECT_EQ(value, leader);
    winners += value == "client " + std::to_string(c);
  }
  EXPECT_EQ(winners, 1);
}

INSTANTIATE_TEST_SUITE_P(Stores, StoreContract,
                         ::testing::Values(kind<TcpHome>("Tcp"), kind<PrefixHome>("Prefix"),
                                           kind<TorchHome<true>>("TorchLibuv"), kind<TorchHome<false>>("Torch")),
                         [](const auto& info) { return info.param.name; });

TEST(StorePrefix, KeepsRunsApart) {
  TcpStoreServer server;
  const Endpoint endpoint{"127.0.0.1", server.port()};
  TcpStore plain(endpoint, 10s), first(endpoint, 10s, {.generation = "job/0"}),
      second(endpoint, 10s, {.generation = "job/1"});
  first.set("master", "old");
  EXPECT_THROW(second.get("master", 0ms), StoreTimeout);
  EXPECT_EQ(plain.get("job/0/master", 0ms), "old");
  EXPECT_EQ(second.compare_set("master", "", "new"), "new");
  EXPECT_EQ(first.get("master", 0ms), "old");
}

TEST(StoreProcesses, ThirtyTwoProcessesAdd) {
  TcpHome tcp;
  std::vector<std::unique_ptr<multinode::testing::Process>> processes;
  for (int i = 0; i < 32; ++i)
    processes.push_back(std::make_unique<multinode::testing::Process>(
        std::vector<std::string>{STORE_CLIENT, "127.0.0.1:" + std::to_string(tcp.server.port()), "add", "n", "20"}));
  for (auto& process : processes) {
    const auto result = process->wait();
    EXPECT_EQ(result.status, 0) << result.all();
  }
  EXPECT_EQ(tcp.connect()->get("n", 0ms), "640");
}

}  // namespace
