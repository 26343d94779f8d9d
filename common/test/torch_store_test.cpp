// TorchStore and torch's own client on torch's own server; and TorchStore on other servers.
#include <multinode/store/tcp_store.hpp>
#include <multinode/store/torch_store.hpp>
#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <filesystem>

using namespace multinode;
using namespace std::chrono_literals;

namespace {

class TorchStoreTest : public ::testing::TestWithParam<bool> {};

// torch's own client puts a slash before its keys.
TEST_P(TorchStoreTest, MeetsTorchsOwnClientOnTorchsServer) {
  const std::string python = multinode::testing::in_torch("python");
  if (!std::filesystem::exists(python))
    GTEST_SKIP() << "no PyTorch: " << python << " does not exist (set MULTINODE_TORCH to another virtual environment)";
  const std::string import = "import datetime, signal, torch.distributed as d\n", libuv = GetParam() ? "True" : "False";
  multinode::testing::Process server(
      {python, "-c",
       import +
           "s = d.TCPStore('127.0.0.1', 0, None, True, datetime.timedelta(seconds=60), wait_for_workers=False, "
           "use_libuv=" +
           libuv + ")\nprint('port', s.port, flush=True)\nsignal.pause()"});
  const auto match = server.wait_for("port ([0-9]+)", 90s);
  ASSERT_TRUE(match) << "torch's server did not start: " << server.wait(1s).all();
  const std::string port = (*match)[1];

  TorchStore store({"127.0.0.1", static_cast<std::uint16_t>(std::stoi(port))}, 20s);
  store.set("/from cpp", std::string("\0binary", 7));
  const auto client =
      multinode::testing::run({python, "-c",
                               import + "s = d.TCPStore('127.0.0.1', " + port +
                                   ", None, False, datetime.timedelta(seconds=30), wait_for_workers=False)\n"
                                   "assert s.get('from cpp') == b'\\0binary', s.get('from cpp')\n"
                                   "s.set('from python', 'hello')\n"
                                   "print('done')\n"},
                              {}, 90s);
  EXPECT_EQ(client.status, 0) << client.err;
  EXPECT_EQ(client.out, "done\n");
  EXPECT_EQ(store.get("/from python", 20s), "hello");
  EXPECT_THROW(store.get("nowhere", 100ms), StoreTimeout);
  EXPECT_THROW(store.set("k", "v"), StoreLost) << "a late answer would be taken for that of the next request";
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
