// Pools of tasks, on a head and a node in this process.
#include "tasks/pool.hpp"

#include "cluster/client.hpp"
#include "cluster/head.hpp"
#include "cluster/node.hpp"
#include "cluster/token.hpp"
#include "tasks/limits.hpp"
#include "tasks/tasks.grpc.pb.h"

#include <multinode/descriptor.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <grpcpp/create_channel.h>
#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <dlfcn.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace tasks_test {

using namespace std::chrono_literals;
using multinode::Descriptor;

// A head and a node of four CPUs.
class Cluster {
 public:
  Cluster() {
    std::filesystem::create_symlink(PATH_task_runner, folder_ / "task_runner");
    std::filesystem::create_symlink(PATH_test_task_library, folder_ / "library.so");
    Dl_info libc{};
    dladdr(reinterpret_cast<void*>(&dladdr), &libc);
    std::filesystem::create_symlink(libc.dli_fname, folder_ / "no_library.so");
    std::promise<void> joined;
    node_ = std::jthread([this, &joined] {
      cluster::NodeOptions options;
      options.head = head();
      options.token = token;
      options.jobs = folder_.path();
      options.cpus = 4;
      options.log = [](const std::string&) {};
      cluster::Node node(options);
      joined.set_value();
      node.run();
    });
    joined.get_future().wait();
  }
  ~Cluster() {
    head_.leave("the test is over");
    node_.join();
  }
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  multinode::Endpoint head() const { return {"127.0.0.1", head_.port()}; }

  tasks::Pool pool(int workers, int max_failures = 0, const std::string& library = "library.so") {
    tasks::PoolOptions options;
    options.head = head();
    options.token = token;
    options.library = library;
    options.num_workers = workers;
    options.max_failures = max_failures;
    options.timeout = multinode::testing::patience;
    return tasks::Pool(options);
  }

  const std::string token = cluster::make_token();

 private:
  const multinode::testing::TemporaryFolder folder_;
  cluster::Head head_{{.port = 0, .token = token}};
  std::jthread node_;
};

// What is thrown when `pool` is made, or `future` asked.
template <class Function>
std::string refusal(Function function) {
  try {
    function();
    return "";
  } catch (const std::exception& e) {
    return e.what();
  }
}

TEST(Pool, RunsFunctionsAndReturnsWhatTheyReturn) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(2);
  EXPECT_EQ(pool.submit<double>("area", 1.5, 4).get(), 6);
  EXPECT_EQ(pool.submit<std::string>("letters", 3).get(), "xxx");
  pool.submit<void>("empty").get();
  const auto future = pool.submit<int>("twice", 21);
  EXPECT_EQ(future.get(), 42);
  EXPECT_EQ(future.get(), 42);
}

TEST(Pool, EveryResultIsItsOwnTasks) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(2);
  std::vector<tasks::Future<std::int64_t>> futures;
  for (int i = 0; i < 10'000; ++i) futures.push_back(pool.submit<std::int64_t>("twice", i));
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(futures[static_cast<std::size_t>(i)].get(), 2 * i);
}

TEST(Pool, IsSharedByThreads) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(2);
  std::atomic<int> wrong{0};
  std::vector<std::jthread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int i = thread; i < 2000; i += 4)
        if (pool.submit<int>("twice", i).get() != 2 * i) ++wrong;
    });
  threads.clear();
  EXPECT_EQ(wrong, 0);
}

TEST(Pool, UsesAllItsRunners) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(2);
  std::vector<tasks::Future<pid_t>> futures;
  for (int i = 0; i < 100; ++i) futures.push_back(pool.submit<pid_t>("pid"));
  std::map<pid_t, int> count;
  for (const auto& future : futures) ++count[future.get()];
  EXPECT_EQ(count.size(), 2u);
}

TEST(Pool, ALongTaskHoldsNoOtherResultBack) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(1);
  const auto quick = pool.submit<int>("twice", 1);
  const auto slow = pool.submit<void>("sleep", 60'000);
  EXPECT_EQ(tasks::wait(std::vector{quick}, 1, 50s).ready.size(), 1u);
  EXPECT_EQ(tasks::wait(std::vector{slow}, 1, 0s).ready.size(), 0u);
}

TEST(Pool, WaitTellsWhichAreReady) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(2);
  const std::vector futures{pool.submit<void>("sleep", 60'000), pool.submit<void>("sleep", 1)};
  EXPECT_EQ(tasks::wait(futures, 0).ready.size() + tasks::wait(futures, 0).not_ready.size(), 2u);
  const auto waited = tasks::wait(futures);
  ASSERT_EQ(waited.ready.size(), 1u);
  EXPECT_EQ(waited.not_ready.size(), 1u);
  waited.ready[0].get();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(tasks::wait(futures, 2, 50ms).ready.size(), 1u);
  EXPECT_GE(std::chrono::steady_clock::now() - start, 50ms);
}

TEST(Pool, SaysWhatWentWrongInATask) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(1);
  try {
    pool.submit<int>("fail", "no \"luck\"").get();
    FAIL();
  } catch (const tasks::TaskFailed& e) {
    EXPECT_EQ(e.function, "fail");
    EXPECT_EQ(e.rank, 0);
    EXPECT_EQ(e.reason, "no \"luck\"");
    EXPECT_EQ(std::string(e.what()), "fail (rank 0, host " + e.host + "): no \"luck\"");
  }
  const auto reason = [&](const auto& future) { return refusal([&] { future.get(); }); };
  EXPECT_NE(reason(pool.submit<int>("absent")).find("): the library has no such function; it has: area, count, "),
            std::string::npos);
  EXPECT_NE(reason(pool.submit<int>("twice", 1, 2)).find("): it takes 1 arguments, not 2"), std::string::npos);
  EXPECT_NE(reason(pool.submit<int>("twice", "x")).find("): argument 1: \"x\" is no integer"), std::string::npos);
  EXPECT_NE(reason(pool.submit<int>("fail oddly")).find("no std::exception"), std::string::npos);
  EXPECT_NE(reason(pool.submit<int>("letters", 3)).find("xxx"), std::string::npos);
  EXPECT_EQ(pool.submit<int>("twice", 4).get(), 8);
}

TEST(Pool, TakesLargeValuesUpToALimit) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(1);
  const std::size_t most = tasks::most_bytes - 10;
  std::vector<tasks::Future<std::size_t>> futures;
  for (int i = 0; i < 10; ++i) futures.push_back(pool.submit<std::size_t>("count", std::string(most, 'x')));
  for (const auto& future : futures) EXPECT_EQ(future.get(), most);
  EXPECT_EQ(pool.submit<std::string>("letters", most).get().size(), most);
  EXPECT_NE(refusal([&] { pool.submit<int>("count", std::string(tasks::most_bytes, 'x')); }).find("more than 4000000"),
            std::string::npos);
  EXPECT_NE(refusal([&] { pool.submit<std::string>("letters", tasks::most_bytes).get(); }).find("more than 4000000"),
            std::string::npos);
  EXPECT_NE(refusal([&] { pool.submit<int>(std::string(1000, 'x')); }).find("256 characters"), std::string::npos);
}

TEST(Pool, ThatCannotStartSaysWhy) {
  for (const auto& [library, reason] :
       std::map<std::string, std::string>{{"absent.so", "cannot open shared object file"},
                                          {"../library.so", "is no library: it is a plain file name"},
                                          {".so", "is no library"},
                                          {"no_library.so", "has no register_functions"}}) {
    Cluster cluster;
    const std::string said = refusal([&, name = library] { cluster.pool(2, 0, name); });
    EXPECT_NE(said.find(reason), std::string::npos) << library << ": " << said;
  }
}

TEST(Pool, EndsItsFuturesWhenItIsDestroyed) {
  Cluster cluster;
  std::vector<tasks::Future<void>> futures;
  {
    tasks::Pool pool = cluster.pool(1);
    for (int i = 0; i < 1000; ++i) futures.push_back(pool.submit<void>("sleep", 60'000));
  }
  for (const auto& future : futures) EXPECT_THROW(future.get(), tasks::PoolEnded);
}

TEST(Pool, EndsItsFuturesWhenARunnerDies) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(2);
  const auto kept = pool.submit<void>("sleep", 60'000);
  const std::string said = refusal([&] { pool.submit<void>("kill", SIGKILL).get(); });
  EXPECT_NE(said.find("was killed by signal 9"), std::string::npos) << said;
  EXPECT_THROW(kept.get(), tasks::PoolEnded);
  EXPECT_THROW(pool.submit<void>("empty"), tasks::PoolEnded);
}

TEST(Pool, SendsUnfinishedTasksAgainWhenARunnerDies) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(2, 1);
  const auto pid = pool.submit<pid_t>("pid").get();
  EXPECT_EQ(kill(pid, SIGSTOP), 0);  // so that it does not finish what it is given
  std::vector<tasks::Future<std::int64_t>> futures;
  for (int i = 0; i < 10'000; ++i) futures.push_back(pool.submit<std::int64_t>("twice", i));
  EXPECT_FALSE(tasks::wait(futures).ready.empty());
  EXPECT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(tasks::wait(futures, futures.size(), 0s).not_ready.empty(), false) << "none was left to be sent again";
  for (int i = 0; i < 10'000; ++i) ASSERT_EQ(futures[static_cast<std::size_t>(i)].get(), 2 * i);
}

TEST(Pool, SeesAFrozenRunner) {
  Cluster cluster;
  tasks::Pool pool = cluster.pool(1);
  const auto start = std::chrono::steady_clock::now();
  const std::string said = refusal([&] { pool.submit<void>("kill", SIGSTOP).get(); });
  EXPECT_NE(said.find("the runner of rank 0"), std::string::npos) << said;
  EXPECT_LT(std::chrono::steady_clock::now() - start, 60s);
}

// What the other side says before it closes the connection, after `bytes`; nothing, where it is still open after a
// minute.
std::optional<std::string> answer_to(const std::string& bytes, std::uint16_t port) {
  const Descriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  const timeval timeout{60, 0};
  setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout);
  if (connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return {};
  send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  std::string said;
  for (char buffer[4096];;) {
    const ssize_t count = recv(fd.get(), buffer, sizeof buffer, 0);
    if (count < 0 && errno == EAGAIN) return {};
    if (count <= 0) return said;
    said.append(buffer, static_cast<std::size_t>(count));
  }
}

TEST(Runner, RefusesStrangersAndServesItsClient) {
  Cluster cluster;
  cluster::Client client(cluster.head(), cluster.token, multinode::testing::patience);
  cluster::Job job;
  job.set_program("task_runner");
  job.add_arguments("library.so");
  job.set_num_workers(1);
  job.set_cpus_per_worker(1);
  std::string secret, errors;
  std::promise<std::string> reported;
  auto result = std::async(std::launch::async, [&] {
    return client.submit(job, [&](const cluster::ToClient& message) {
      if (message.has_accepted()) secret = message.accepted().secret();
      if (message.has_output()) errors += message.output().text();
      if (!message.has_report()) return;
      const auto report = nlohmann::json::parse(message.report().json());
      if (report.contains("tasks")) reported.set_value(report["tasks"]);
    });
  });
  const std::string address = reported.get_future().get();
  const auto port = multinode::parse_endpoint(address, "a runner's address").port;
  const auto stub = tasks::RunnerService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const auto open = [&](grpc::ClientContext& call, const std::string& with) {
    call.set_deadline(std::chrono::system_clock::now() + multinode::testing::patience);
    if (!with.empty()) cluster::add_token(call, with);
    return stub->Run(&call);
  };
  grpc::ClientContext call;
  const auto stream = open(call, secret);
  const auto expect_service = [&] {
    tasks::Tasks message;
    tasks::Task& task = *message.add_tasks();
    task.set_function("twice");
    nlohmann::json::to_cbor({21}, *task.mutable_arguments());
    EXPECT_TRUE(stream->Write(message));
    tasks::Outcomes outcomes;
    ASSERT_TRUE(stream->Read(&outcomes));
    ASSERT_EQ(outcomes.outcomes_size(), 1);
    EXPECT_EQ(nlohmann::json::from_cbor(outcomes.outcomes(0).value()), 42) << outcomes.DebugString();
  };
  expect_service();

  std::string nearly = secret;
  nearly.back() = nearly.back() == '0' ? '1' : '0';
  for (const std::string& wrong : {std::string(), cluster.token, nearly, cluster::make_token()}) {
    grpc::ClientContext other;
    const auto refused = open(other, wrong);
    tasks::Tasks huge;
    huge.add_tasks()->set_arguments(std::string(64 << 20, 'x'));
    refused->Write(huge);
    EXPECT_EQ(refused->Finish().error_code(), grpc::StatusCode::UNAUTHENTICATED);
  }
  expect_service();
  grpc::ClientContext second;
  EXPECT_EQ(open(second, secret)->Finish().error_code(), grpc::StatusCode::ALREADY_EXISTS);

  std::mt19937 random(1);
  std::string bytes(64 << 10, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  const std::string preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
  for (const std::string& said : {bytes, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" + bytes, preface + bytes})
    EXPECT_TRUE(answer_to(said, port).has_value());
  expect_service();

  // With the secret: what cannot be parsed is one task's error, what is too large ends the call, and the runner.
  tasks::Tasks wrong;
  wrong.add_tasks()->set_function("twice");
  EXPECT_TRUE(stream->Write(wrong));
  tasks::Outcomes outcomes;
  ASSERT_TRUE(stream->Read(&outcomes));
  EXPECT_EQ(outcomes.outcomes(0).what_case(), tasks::Outcome::kError);
  expect_service();
  wrong.mutable_tasks(0)->set_arguments(std::string(tasks::message_bytes, 'x'));
  stream->Write(wrong);
  EXPECT_FALSE(stream->Read(&outcomes));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(result.get().status(), 1);
  EXPECT_EQ(multinode::testing::occurrences(errors, "refused 127.0.0.1"), 1u) << errors;
}

}  // namespace tasks_test
