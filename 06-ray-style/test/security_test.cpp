// What strangers send to the head's port: refused, logged once, and the service goes on.
#include "cluster/listener.hpp"
#include "test/head_fixture.hpp"

#include <multinode/descriptor.hpp>

#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace security_test {

using namespace std::chrono_literals;
using namespace cluster;
using multinode::Descriptor;
using Clock = std::chrono::steady_clock;
using Lines = std::vector<std::string>;

const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string settings("\0\0\0\4\0\0\0\0\0", 9);  // HTTP/2's empty SETTINGS frame
const std::string browser =
    "POST /cluster.Cluster/Submit HTTP/1.1\r\nHost: localhost:6379\r\nUser-Agent: Mozilla/5.0\r\n"
    "Content-Type: application/grpc\r\nOrigin: http://example.com\r\nContent-Length: 5\r\n\r\nhello";

// What the head says before it closes the connection. Fails the test where it stays open.
std::string receive_all(const Descriptor& fd) {
  std::string all;
  for (const auto end = Clock::now() + multinode::testing::patience;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now());
    pollfd poller{fd.get(), POLLIN, 0};
    if (left <= 0ms || poll(&poller, 1, static_cast<int>(left.count())) <= 0) {
      ADD_FAILURE() << "the connection is still open";
      return all;
    }
    std::array<char, 4096> buffer{};
    const ssize_t count = recv(fd.get(), buffer.data(), buffer.size(), 0);
    if (count <= 0) return all;
    all.append(buffer.data(), static_cast<std::size_t>(count));
  }
}

// Sends all of it, or until the other side closes.
void send_all(const Descriptor& fd, const std::string& bytes) {
  for (std::size_t sent = 0; sent < bytes.size();) {
    const ssize_t count = send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
    if (count <= 0) return;
    sent += static_cast<std::size_t>(count);
  }
}

// A number of this process from /proc/self/status, in bytes.
std::size_t memory(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string word; file >> word;)
    if (word == key + ":") {
      std::size_t kibibytes = 0;
      file >> kibibytes;
      return kibibytes << 10;
    }
  ADD_FAILURE() << key;
  return 0;
}

class SecurityTest : public cluster::testing::HeadTest {
 protected:
  Descriptor connect(const char* from = "127.0.0.1") const {
    Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(head->port());
    EXPECT_EQ(::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }
  std::shared_ptr<grpc::Channel> channel() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(head->port()), grpc::InsecureChannelCredentials(),
                                     arguments);
  }

  // The service is unharmed: a job runs.
  void expect_service() {
    auto own = node("a", 1);
    auto job = submit(cluster::testing::job_of(1));
    const Start start = own->start();
    own->started(start);
    own->all_ended(start, 0);
    EXPECT_EQ(job->result().status(), 0);
  }

  Lines refused() { return logged("refused"); }
  // Ends the head, which then logs how many were refused.
  std::string last_refusal() {
    head.reset();
    const Lines lines = refused();
    return lines.empty() ? "" : lines.back();
  }
};

TEST_F(SecurityTest, NoCallWithoutTheToken) {
  const auto stub = Cluster::NewStub(channel());
  std::string nearly = token;
  nearly.back() = nearly.back() == '0' ? '1' : '0';
  const std::vector<Lines> wrong = {{},
                                    {"Bearer " + make_token()},
                                    {"Bearer " + nearly},
                                    {"Bearer " + token.substr(1)},
                                    {"Bearer "},
                                    {token},
                                    {"Basic " + token},
                                    {"Bearer " + token, "Bearer " + nearly}};
  for (const Lines& values : wrong) {
    const auto expect_refused = [&](auto method) {
      grpc::ClientContext call;
      call.set_deadline(std::chrono::system_clock::now() + multinode::testing::patience);
      for (const std::string& value : values) call.AddMetadata("authorization", value);
      EXPECT_EQ((stub.get()->*method)(&call)->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED)
          << (values.empty() ? "no token" : values[0]);
    };
    expect_refused(&Cluster::Stub::Join);
    expect_refused(&Cluster::Stub::Submit);
    expect_refused(&Cluster::Stub::GetStatus);
  }
  EXPECT_EQ(refused(), Lines({"refused 127.0.0.1: a call without the token"}));
  expect_service();
  EXPECT_EQ(last_refusal(), "refused 127.0.0.1 24 times");
  EXPECT_TRUE(logged(token).empty());
}

TEST_F(SecurityTest, RandomBytes) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(1 + random() % 20'000, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    const Descriptor fd = connect();
    send_all(fd, bytes);
    EXPECT_EQ(receive_all(fd), "");
    if (i == 150) expect_service();
  }
  EXPECT_EQ(refused(), Lines({"refused 127.0.0.1: it does not speak HTTP/2"}));
  expect_service();
  EXPECT_EQ(last_refusal(), "refused 127.0.0.1 300 times");
}

TEST_F(SecurityTest, RandomBytesBehindARightBeginning) {
  std::mt19937 random(2);
  for (int i = 0; i < 300; ++i) {
    std::string bytes(9 + random() % 20'000, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    const Descriptor fd = connect();
    send_all(fd, preface + settings + bytes);
    shutdown(fd.get(), SHUT_WR);
    receive_all(fd);
    if (i == 150) expect_service();
  }
  expect_service();
}

TEST_F(SecurityTest, ABrowser) {
  Descriptor fd = connect();
  send_all(fd, browser);
  EXPECT_EQ(receive_all(fd), "");
  fd = connect("127.0.0.2");
  for (const char c : browser.substr(0, 3)) send_all(fd, {c});
  EXPECT_EQ(receive_all(fd), "");
  EXPECT_EQ(refused(),
            Lines({"refused 127.0.0.1: it does not speak HTTP/2", "refused 127.0.0.2: it does not speak HTTP/2"}));
  expect_service();
}

TEST_F(SecurityTest, AThousandIdleConnections) {
  std::vector<Descriptor> idle;
  const auto since = Clock::now();
  for (int i = 0; i < 1000; ++i) {
    idle.push_back(connect());
    if (i % 4 == 1) send_all(idle.back(), preface.substr(0, 12));
    if (i % 4 == 2) send_all(idle.back(), preface);
    if (i % 4 == 3) send_all(idle.back(), preface + settings);
  }
  expect_service();
  for (const Descriptor& fd : idle) receive_all(fd);
  EXPECT_GT(Clock::now() - since, Listener::to_begin);
  EXPECT_EQ(refused(), Lines({"refused 127.0.0.1: the connection did not begin"}));
  expect_service();
  EXPECT_EQ(last_refusal(), "refused 127.0.0.1 500 times");
}

TEST_F(SecurityTest, MoreConnectionsThanThereMayBe) {
  std::vector<Descriptor> open;
  for (std::size_t i = 0; i < Listener::most_connections; ++i) {
    open.push_back(connect());
    if (i % 2) send_all(open.back(), preface + settings);
  }
  Descriptor fd = connect("127.0.0.2");
  EXPECT_EQ(receive_all(fd), "");
  EXPECT_EQ(logged("refused 127.0.0.2"), Lines({"refused 127.0.0.2: too many connections"}));
  open.clear();
  expect_service();
}

// Calls Submit with a message of 1 GiB, made of one MiB that is sent 1,024 times.
grpc::Status send_gibibyte(const std::shared_ptr<grpc::Channel>& channel, const std::string& token) {
  grpc::GenericStub stub(channel);
  grpc::CompletionQueue queue;
  grpc::ClientContext call;
  call.set_deadline(std::chrono::system_clock::now() + multinode::testing::patience);
  if (!token.empty()) add_token(call, token);
  const auto next = [&] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  const auto stream = stub.PrepareCall(&call, "/cluster.Cluster/Submit", &queue);
  stream->StartCall(nullptr);
  next();
  const grpc::Slice part(std::string(1 << 20, 'x'));
  const std::vector<grpc::Slice> parts(1024, part);
  stream->Write(grpc::ByteBuffer(parts.data(), parts.size()), nullptr);
  next();
  grpc::Status status;
  stream->Finish(&status, nullptr);
  next();
  queue.Shutdown();
  while (next()) {
  }
  return status;
}

TEST_F(SecurityTest, AGibibyteWithoutTheToken) {
  const std::size_t before = memory("VmHWM");
  auto sent = std::async(std::launch::async, [&] { return send_gibibyte(channel(), ""); });
  expect_service();
  EXPECT_EQ(sent.get().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_LT(memory("VmHWM") - before, 64u << 20);
  EXPECT_EQ(refused(), Lines({"refused 127.0.0.1: a call without the token"}));
  expect_service();
}

TEST_F(SecurityTest, AGibibyteWithTheToken) {
  const std::size_t before = memory("VmHWM");
  auto sent = std::async(std::launch::async, [&] { return send_gibibyte(channel(), token); });
  expect_service();
  EXPECT_EQ(sent.get().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_LT(memory("VmHWM") - before, 512u << 20);
  for (const auto end = Clock::now() + multinode::testing::patience; refused().empty() && Clock::now() < end;)
    std::this_thread::sleep_for(1ms);
  EXPECT_EQ(refused(), Lines({"refused 127.0.0.1: a client that sent no job, or more than 4194304 bytes"}));
  expect_service();
}

}  // namespace security_test
