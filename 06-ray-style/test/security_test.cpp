// What strangers send to the head's port: none of it becomes a call, and the service goes on. And the state folder.
#include "control-plane/state_folder.hpp"
#include "test/head_fixture.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/net/socket.hpp>

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace security_test {

using namespace cluster;
using namespace cluster::testing;
using multinode::Descriptor;

class SecurityTest : public HeadTest {
 protected:
  // Sends all of it, or until the head closes the connection.
  void send_bytes(const std::string& bytes) const {
    using multinode::TcpClient;
    try {
      TcpClient client({"127.0.0.1", head->port()}, patience, [](TcpClient&, auto) {});
      multinode::Deadline deadline(patience);
      client.send(bytes, deadline, "sending what is no call");
    } catch (const multinode::StoreLost&) {
    }
  }
  static grpc::Status try_status(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + patience);
    Status status;
    return Cluster::NewStub(channel)->GetStatus(&context, Nothing(), &status);
  }
  void expect_service() {
    auto own = node("a", 1);
    const auto job = submit(job_of(1));
    const Start start = own->start();
    own->started(start);
    own->all_ended(start, 0);
    record(job);
  }
};

TEST_F(SecurityTest, NoCallWithoutTheKeyOrToAnotherHead) {
  const multinode::Endpoint address{"127.0.0.1", head->port()};
  const std::string other = make_key();
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("multinode-cluster");
  std::vector channels = {make_channel(address, other),
                          grpc::CreateChannel(to_string(address), grpc::InsecureChannelCredentials())};
  for (const grpc::SslCredentialsOptions& options : {grpc::SslCredentialsOptions{key, "", ""},
                                                     {key, other, other},
                                                     {other, key, key}})  // the last trusts another head
    channels.push_back(grpc::CreateCustomChannel(to_string(address), grpc::SslCredentials(options), arguments));
  for (const auto& channel : channels) EXPECT_EQ(try_status(channel).error_code(), grpc::StatusCode::UNAVAILABLE);
  expect_service();
}

TEST_F(SecurityTest, RandomBytesAndABrowser) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    std::string bytes(1 + random() % 20'000, '\0');
    std::generate(bytes.begin(), bytes.end(), [&] { return static_cast<char>(random()); });
    if (i % 2) bytes.insert(0, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    send_bytes(bytes);
  }
  send_bytes(
      "POST /cluster.Cluster/Submit HTTP/1.1\r\nHost: localhost:6379\r\nContent-Type: application/grpc\r\n\r\nhello");
  expect_service();
}

TEST_F(SecurityTest, AMessageThatIsTooLarge) {
  Job job = job_of(1);
  job.add_arguments(std::string(most_message_bytes, 'x'));
  JobNumber number;
  EXPECT_EQ(call(&Cluster::Stub::Submit, job, number).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  expect_service();
}

class StateFolderTest : public ::testing::Test {
 protected:
  static std::string refusal(const std::function<void()>& call) {
    return multinode::testing::error_text<multinode::UsageError>(call);
  }
  const multinode::testing::TemporaryFolder temporary_;
  const std::filesystem::path path_ = temporary_ / "state";
  const StateFolder folder_{path_};
  const std::filesystem::path file_ = path_ / "key.pem";
};

TEST_F(StateFolderTest, KeepsTheKeyForItsUser) {
  const std::string key = make_key();
  EXPECT_NE(key, make_key());
  folder_.write_key("older");
  folder_.write_key(key);
  EXPECT_EQ(folder_.read_key(), key);
  struct stat status {};
  ASSERT_EQ(stat(file_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0600u);
  ASSERT_EQ(stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 07777, 0700u);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(path_), {}), 1) << "an unfinished file stayed";
}

TEST_F(StateFolderTest, RefusesWhatIsOpenOrNoKey) {
  EXPECT_SAYS(refusal([&] { folder_.read_key(); }), file_.string() + ": No such file");
  folder_.write_key(make_key());
  chmod(file_.c_str(), 0640);
  EXPECT_SAYS(refusal([&] { folder_.read_key(); }), "is open to other users");
  folder_.write_key("text\n");
  EXPECT_SAYS(refusal([&] { folder_.read_key(); }), "does not contain a key");
  std::filesystem::remove(file_);
  std::filesystem::create_symlink("/etc/passwd", file_);
  refusal([&] { folder_.read_key(); });
  chmod(path_.c_str(), 0755);
  EXPECT_SAYS(refusal([&] { StateFolder{path_}; }), "is open to other users");
  std::ofstream(temporary_ / "file") << "x";
  EXPECT_SAYS(refusal([&] { StateFolder{temporary_ / "file"}; }), "is not a folder");
  refusal([] { StateFolder{"/proc"}; });
}

TEST_F(StateFolderTest, HasOneHead) {
  {
    const Descriptor lock = folder_.lock();
    EXPECT_SAYS(refusal([&] { folder_.lock(); }), "a head that uses " + path_.string() + " is running");
  }
  folder_.lock();
}

}  // namespace security_test
