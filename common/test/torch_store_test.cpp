// TorchStore and torch's own client on torch's own server; and TorchStore on other servers.
#include "torch_server.hpp"

#include <multinode/torch_store.hpp>

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <future>

using namespace multinode;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

class TorchStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!multinode::testing::TorchServer::installed()) GTEST_SKIP() << multinode::testing::TorchServer::why_not();
  }
  multinode::testing::TorchServer& server() { return multinode::testing::TorchServer::shared(GetParam()); }
  // Runs lines of Python with `s`, torch's client.
  multinode::testing::Result python(const std::string& lines) {
    return multinode::testing::run(
        {multinode::testing::TorchServer::python(), "-c",
         "import datetime, time, torch.distributed as d\n"
         "s = d.TCPStore('127.0.0.1', " +
             std::to_string(server().endpoint().port) +
             ", None, False, datetime.timedelta(seconds=30), wait_for_workers=False)\n" + lines},
        {}, 90s);
  }
};

// torch's own client puts a slash before its keys.
TEST_P(TorchStoreTest, MeetsTorchsOwnClient) {
  TorchStore store(server().endpoint(), 20s);
  store.set("/from cpp", std::string("\0binary", 7));
  const auto result = python(
      "assert s.get('from cpp') == b'\\0binary', s.get('from cpp')\n"
      "s.set('from python', 'hello')\n"
      "assert s.add('count', 3) == 3\n"
      "print('done')\n");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "done\n");
  EXPECT_EQ(store.get("/from python", 20s), "hello");
  EXPECT_EQ(store.add("/count", 4), 7);
}

TEST_P(TorchStoreTest, TheConnectionIsUsableAfterATimeout) {
  TorchStore store(server().endpoint(), 20s);
  TorchStore other(server().endpoint(), 20s);
  for (int i = 0; i < 30; ++i) {
    const auto key = "race " + std::to_string(i);
    // The value arrives at about the time of the timeout, so both outcomes occur.
    auto setter = std::async(std::launch::async, [&] { other.set(key, "v"); });
    try {
      EXPECT_EQ(store.get(key, std::chrono::milliseconds(i % 2)), "v");
    } catch (const StoreTimeout&) {
    }
    setter.get();
    EXPECT_EQ(store.add("steps", 1), i + 1);
    EXPECT_EQ(store.get(key, 0ms), "v");
  }
}

TEST_P(TorchStoreTest, NamesTheServerItLost) {
  multinode::testing::TorchServer own(GetParam());
  TorchStore store(own.endpoint(), 20s);
  store.set("k", "v");
  own.process().signal(SIGKILL);
  own.process().wait();
  try {
    store.set("k", "w");
    store.get("k", 1s);
    ADD_FAILURE() << "the server is dead";
  } catch (const StoreLost& error) {
    EXPECT_NE(std::string(error.what()).find(to_string(own.endpoint())), std::string::npos) << error.what();
  }
}

TEST_P(TorchStoreTest, AStoppedServerIsATimeout) {
  multinode::testing::TorchServer own(GetParam());
  TorchStore store(own.endpoint(), 500ms);
  own.process().signal(SIGSTOP);
  const auto start = Clock::now();
  EXPECT_THROW(store.get("k", 300ms), StoreTimeout);
  EXPECT_LT(Clock::now() - start, 20s);
  EXPECT_THROW(store.set("k", "v"), StoreLost);
  EXPECT_THROW(TorchStore(own.endpoint(), 300ms), StoreTimeout);
  own.process().signal(SIGCONT);
}

TEST_P(TorchStoreTest, RoundTripTimes) {
  TorchStore store(server().endpoint(), 20s);
  constexpr int times = 1'000;
  store.set("k", "12345678");
  const auto start = Clock::now();
  for (int i = 0; i < times; ++i) store.set("k", "12345678");
  const auto between = Clock::now();
  for (int i = 0; i < times; ++i) ASSERT_EQ(store.get("k", 10s), "12345678");
  const std::chrono::duration<double, std::micro> set = between - start, get = Clock::now() - between;
  const auto result = python(
      "s.set('k', '12345678')\n"
      "t0 = time.perf_counter()\n"
      "for i in range(1000): s.set('k', '12345678')\n"
      "t1 = time.perf_counter()\n"
      "for i in range(1000): assert s.get('k') == b'12345678'\n"
      "t2 = time.perf_counter()\n"
      "print(f'set {(t1 - t0) * 1e3:.1f} us (not answered), get {(t2 - t1) * 1e3:.1f} us')\n");
  EXPECT_EQ(result.status, 0) << result.err;
  std::printf("torch %s, %s: TorchStore set %.1f us, get %.1f us; torch's client: %s", server().version().c_str(),
              GetParam() ? "libuv" : "no libuv", set.count() / times, get.count() / times, result.out.c_str());
}

INSTANTIATE_TEST_SUITE_P(Torch, TorchStoreTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Libuv" : "NoLibuv"; });

TEST(TorchStoreAlone, AnotherStoreIsNotTorchs) {
  TcpStoreServer server;  // closes the connection at the first byte
  EXPECT_THROW(TorchStore({"127.0.0.1", server.port()}, 200ms), StoreTimeout);
  std::uint16_t port = 0;
  { port = TcpStoreServer().port(); }
  EXPECT_THROW(TorchStore({"127.0.0.1", port}, 200ms), StoreTimeout);
}

}  // namespace
