// TorchStore and torch's own client on torch's own server; and TorchStore on other servers.
#include <multinode/tcp_store.hpp>
#include <multinode/torch_store.hpp>
#include <testing/program_test.hpp>

#include <gtest/gtest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <memory>
#include <stdexcept>

using namespace multinode;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// The server of the real torch.distributed.TCPStore, in a Python process.
class TorchServer {
 public:
  static std::string python() { return multinode::testing::in_torch("python"); }
  static bool installed() { return std::filesystem::exists(python()); }
  static std::string why_not() {
    return "no PyTorch: " + python() + " does not exist (set MULTINODE_TORCH to another virtual environment)";
  }

  explicit TorchServer(bool use_libuv)
      : process_({python(), "-c",
                  "import datetime, signal, torch.distributed as d\n"
                  "s = d.TCPStore('127.0.0.1', 0, None, True, datetime.timedelta(seconds=60), wait_for_workers=False,"
                  " use_libuv=" +
                      std::string(use_libuv ? "True" : "False") +
                      ")\n"
                      "print('port', s.port, flush=True)\n"
                      "signal.pause()"}) {
    const auto match = process_.wait_for("port ([0-9]+)", std::chrono::seconds(90));
    if (!match)
      throw std::runtime_error("torch's server did not start: " + process_.wait(std::chrono::seconds(1)).all());
    port_ = static_cast<std::uint16_t>(std::stoi((*match)[1]));
  }

  Endpoint endpoint() const { return {"127.0.0.1", port_}; }
  multinode::testing::Process& process() { return process_; }

  static TorchServer& shared(bool use_libuv) {
    static std::unique_ptr<TorchServer> servers[2];
    auto& server = servers[use_libuv ? 1 : 0];
    if (!server) server = std::make_unique<TorchServer>(use_libuv);
    return *server;
  }

 private:
  multinode::testing::Process process_;
  std::uint16_t port_ = 0;
};

class TorchStoreTest : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!TorchServer::installed()) GTEST_SKIP() << TorchServer::why_not();
  }
  TorchServer& server() { return TorchServer::shared(GetParam()); }
  // Runs lines of Python with `s`, torch's client.
  multinode::testing::Result python(const std::string& lines) {
    return multinode::testing::run(
        {TorchServer::python(), "-c",
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
      "print('done')\n");
  EXPECT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(result.out, "done\n");
  EXPECT_EQ(store.get("/from python", 20s), "hello");
  EXPECT_THROW(store.get("nowhere", 100ms), StoreTimeout);
}

TEST_P(TorchStoreTest, NamesTheServerItLost) {
  TorchServer own(GetParam());
  TorchStore store(own.endpoint(), 20s);
  store.set("k", "v");
  own.process().signal(SIGKILL);
  own.process().wait();
  const std::string lost = multinode::testing::error_text<StoreLost>([&] {
    store.set("k", "w");
    store.get("k", 1s);
  });
  EXPECT_SAYS(lost, to_string(own.endpoint()));
}

TEST_P(TorchStoreTest, AStoppedServerIsATimeout) {
  TorchServer own(GetParam());
  TorchStore store(own.endpoint(), 500ms);
  own.process().signal(SIGSTOP);
  const auto start = Clock::now();
  EXPECT_THROW(store.get("k", 300ms), StoreTimeout);
  EXPECT_LT(Clock::now() - start, 20s);
  EXPECT_THROW(store.set("k", "v"), StoreLost);
  EXPECT_THROW(TorchStore(own.endpoint(), 300ms), StoreTimeout);
  own.process().signal(SIGCONT);
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
