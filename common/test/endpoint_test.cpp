#include <multinode/base/check.hpp>
#include <multinode/launch/endpoint.hpp>
#include <multinode/net/address.hpp>
#include <multinode/store/tcp_store.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <netinet/in.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <tuple>

namespace multinode {
namespace {

TEST(Endpoint, IsReadAndWritten) {
  for (const auto& [text, host, port] :
       {std::tuple("localhost:29500", "localhost", 29500), std::tuple("10.0.0.1:1", "10.0.0.1", 1),
        std::tuple("[::1]:65535", "::1", 65535), std::tuple("[fe80::1%eth0]:80", "fe80::1%eth0", 80),
        std::tuple("node-1.cluster:29400", "node-1.cluster", 29400)}) {
    const auto endpoint = parse_endpoint(text, "--rdzv-endpoint");
    EXPECT_EQ(endpoint.host, host);
    EXPECT_EQ(endpoint.port, port);
    EXPECT_EQ(to_string(endpoint), text);
  }
  for (const char* host : {"node0", "10.0.0.1", "::1", "[::1]", "fe80::1%eth0", "[2605:340::1]"})
    EXPECT_EQ(parse_host(host, "--host"), host[0] == '[' ? std::string(host + 1, std::strlen(host) - 2) : host);
}

TEST(Endpoint, InvalidTextIsRefusedByName) {
  for (const char* text : {"",        "host",       "host:",        ":1",
                           "host:0",  "host:65536", "host:-1",      "host:+1",
                           "host:1x", "host: 1",    "::1:80",       "[::1]",
                           "[]:1",    "[::1:80",    "[host]:1",     "10.0.0.256:1",
                           "[::g]:1", "a b:1",      "tcp://host:1", "host:99999999999999999999"})
    EXPECT_SAYS(testing::error_text<UsageError>([&] { parse_endpoint(text, "--rdzv-endpoint"); }),
                std::string("--rdzv-endpoint: \"") + text + '"');
  EXPECT_SAYS(testing::error_text<UsageError>([] { parse_endpoint("host\n:1", "MNRUN_STORE"); }),
              "MNRUN_STORE: \"host?:1\"");
  for (const char* text : {"", "[::1", "::1]", "node0:1", "10.0.0.256", "fe80::1%", "-o", "a b"})
    EXPECT_SAYS(testing::error_text<UsageError>([&] { parse_host(text, "--host"); }), "--host: '" + std::string(text));
}

TEST(FreePort, IsKeptForAServerThatIsToldItsNumber) {
  const FreePort kept;
  const Descriptor other(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(kept.number());
  EXPECT_EQ(bind(other.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), -1);
  EXPECT_EQ(errno, EADDRINUSE);
  for (const char* host : {"127.0.0.1", ""}) {
    const TcpStoreServer server(host, kept.number());
    TcpStore({"127.0.0.1", kept.number()}, std::chrono::seconds(60)).goodbye();
  }
}

}  // namespace
}  // namespace multinode
