#include <multinode/check.hpp>
#include <multinode/endpoint.hpp>

#include <gtest/gtest.h>

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
  EXPECT_EQ(to_string(parse_endpoint("[host]:5", "")), "host:5");
}

TEST(Endpoint, InvalidTextIsRefusedByName) {
  for (const char* text :
       {"", "host", "host:", ":1", "host:0", "host:65536", "host:-1", "host:+1", "host:1x", "host: 1", "::1:80",
        "[::1]", "[]:1", "[::1:80", "a b:1", "tcp://host:1", "host:99999999999999999999"}) {
    try {
      parse_endpoint(text, "--rdzv-endpoint");
      ADD_FAILURE() << "taken: " << text;
    } catch (const UsageError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(std::string("--rdzv-endpoint: \"") + text + '"'), std::string::npos) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos);
    }
  }
}

TEST(Endpoint, TheErrorIsOneLine) {
  try {
    parse_endpoint("host\n:1", "MNRUN_STORE");
    ADD_FAILURE();
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find("MNRUN_STORE: \"host?:1\" is not host:port"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace multinode
