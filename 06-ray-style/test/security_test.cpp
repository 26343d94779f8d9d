// What strangers send to the head's port: none of it becomes a call, and the service goes on. And the state folder.
#include "control-plane/state_folder.hpp"
#include "test/head_fixture.hpp"

#include <multinode/check.hpp>
#include <multinode/descriptor.hpp>

#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <random>
#include <string>
#include <vector>

namespace security_test {

using namespace cluster;
using multinode::Descriptor;

class SecurityTest : public cluster::testing::HeadTest {
 protected:
  // Sends all of it, or until the other side closes.
  void send_bytes(const std::string& bytes) const {
    const Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(head->port());
    ASSERT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    for (std::size_t sent = 0; sent < bytes.size();) {
      const ssize_t count = send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (count <= 0) return;
      sent += static_cast<std::size_t>(count);
    }
  }
  static grpc::Status try_status(const std::shared_ptr<grpc::Channel>& channel) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + multinode::testing::patience);
    Status status;
    return Cluster::NewStub(channel)->GetStatus(&context, Nothing(), &status);
  }
  void expect_service() {
    auto own = node("a", 1);
    const auto job = submit(cluster::testing::job_of(1));
    const Start start = own->start();
    own->started(start);
    own->all_ended(start, 0);
    record(job);
  }
};

TEST_F(SecurityTest, NoCallWithoutTheKey) {
  const std::string address = "127.0.0.1:" + std::to_string(head->port());
  const std::string other = make_key();
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("multinode-cluster");
  EXPECT_TRUE(try_status(make_channel({"127.0.0.1", head->port()}, key)).ok());
  EXPECT_EQ(try_status(make_channel({"127.0.0.1", head->port()}, other)).error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(try_status(grpc::CreateChannel(address, grpc::InsecureChannelCredentials())).error_code(),
            grpc::StatusCode::UNAVAILABLE);
  for (const grpc::SslCredentialsOptions& options :
       {grpc::SslCredentialsOptions{key, "", ""}, grpc::SslCredentialsOptions{key, other, other}})
    EXPECT_EQ(try_status(grpc::CreateCustomChannel(address, grpc::SslCredentials(options), arguments)).error_code(),
              grpc::StatusCode::UNAVAILABLE);
  expect_service();
}

// A head that has another key, as a stranger's on the address of one that has ended.
TEST_F(SecurityTest, NoCallToAnotherHead) {
  grpc::ChannelArguments arguments;
  arguments.SetSslTargetNameOverride("multinode-cluster");
  const std::string other = make_key();
  const grpc::SslCredentialsOptions options{other, key, key};  // the head would accept it
  const auto channel =
      grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(head->port()), grpc::SslCredentials(options), arguments);
  EXPECT_EQ(try_status(channel).error_code(), grpc::StatusCode::UNAVAILABLE);
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
  Job job = cluster::testing::job_of(1);
  job.add_arguments(std::string(most_message_bytes, 'x'));
  JobNumber number;
  EXPECT_EQ(call(&Cluster::Stub::Submit, job, number).error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  expect_service();
}

class StateFolderTest : public ::testing::Test {
 protected:
  template <class Call>
  static std::string refusal(const Call& call) {
    try {
      call();
    } catch (const multinode::UsageError& e) {
      return e.what();
    }
    return "";
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
  EXPECT_NE(refusal([&] { folder_.read_key(); }).find(file_.string() + ": No such file"), std::string::npos);
  folder_.write_key(make_key());
  chmod(file_.c_str(), 0640);
  EXPECT_NE(refusal([&] { folder_.read_key(); }).find("is open to other users"), std::string::npos);
  folder_.write_key("text\n");
  EXPECT_NE(refusal([&] { folder_.read_key(); }).find("does not contain a key"), std::string::npos);
  std::filesystem::remove(file_);
  std::filesystem::create_symlink("/etc/passwd", file_);
  EXPECT_NE(refusal([&] { folder_.read_key(); }), "");
  chmod(path_.c_str(), 0755);
  EXPECT_NE(refusal([&] { StateFolder{path_}; }).find("is open to other users"), std::string::npos);
  std::ofstream(temporary_ / "file") << "x";
  EXPECT_NE(refusal([&] { StateFolder{temporary_ / "file"}; }).find("is not a folder"), std::string::npos);
  EXPECT_NE(refusal([&] { StateFolder{"/proc"}; }), "");
}

TEST_F(StateFolderTest, HasOneHead) {
  {
    const Descriptor lock = folder_.lock();
    EXPECT_NE(refusal([&] { folder_.lock(); }).find("a head that uses " + path_.string() + " is running"),
              std::string::npos);
  }
  EXPECT_EQ(refusal([&] { folder_.lock(); }), "");
}

}  // namespace security_test
