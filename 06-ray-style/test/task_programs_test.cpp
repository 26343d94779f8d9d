// pi_tasks and task_rate on a cluster, as a user runs them.
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

namespace task_programs_test {

using multinode::testing::Result;
using multinode::testing::run;
using nlohmann::json;

class TaskPrograms : public testing::Test {
 protected:
  TaskPrograms() {
    const Result started = run({PATH_cluster, "start", "--head", "--port", "0", "--num-cpus", "2", "--state", state_});
    EXPECT_EQ(started.status, 0) << started.all();
  }
  ~TaskPrograms() override {
    const Result stopped = run({PATH_cluster, "stop", "--state", state_});
    EXPECT_EQ(stopped.status, 0) << stopped.all();
  }

  Result on_cluster(const std::string& program, const std::vector<std::string>& options) const {
    std::vector<std::string> command = {program, "--state", state_};
    command.insert(command.end(), options.begin(), options.end());
    return run(command);
  }

  // Of the head, in bytes.
  std::size_t peak_memory() const {
    std::string pid;
    for (const auto& entry : std::filesystem::directory_iterator(state_))
      if (entry.path().string().ends_with("-head.pid")) std::ifstream(entry.path()) >> pid;
    std::ifstream status("/proc/" + pid + "/status");
    for (std::string word; status >> word;)
      if (word == "VmHWM:") {
        std::size_t kibibytes = 0;
        status >> kibibytes;
        return kibibytes << 10;
      }
    ADD_FAILURE() << "no peak of process '" << pid << "'";
    return 0;
  }

  const multinode::testing::TemporaryFolder folder_;
  const std::string state_ = folder_ / "state";
};

TEST_F(TaskPrograms, PiHasTheSameBitsWhateverTheWorkers) {
  const std::string file = state_ + "/result.json";
  std::map<std::string, json> results;
  for (const std::string workers : {"1", "2"}) {
    const Result result =
        on_cluster(PATH_pi_tasks, {"--intervals", "1000003", "--num-workers", workers, "--json", file});
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_NE(result.out.find(": right\n1000 tasks on " + workers + " worker"), std::string::npos) << result.out;
    results[workers] = json::parse(std::ifstream(file));
    EXPECT_EQ(results[workers]["right"], true);
    EXPECT_NEAR(results[workers]["result"].get<double>(), 3.14159265358979, 1e-12);
  }
  EXPECT_EQ(results["1"]["result"], results["2"]["result"]);
  const Result few = on_cluster(PATH_pi_tasks, {"--intervals", "1", "--tasks", "1"});
  EXPECT_EQ(few.status, 0) << few.all();
  EXPECT_NE(few.out.find("pi = 3.2"), std::string::npos) << few.out;
}

TEST_F(TaskPrograms, SayWhatIsWrong) {
  const std::map<std::string, std::vector<std::string>> wrong = {
      {"--tasks must be from 1 to 10000000, not 0", {"--tasks", "0"}},
      {"--tasks must be from 1 to 10, not 1000", {"--intervals", "10"}},
      {"--num-workers", {"--num-workers", "0"}},
      {"unrecognised option", {"--task", "3"}},
      {"no other words", {"3"}},
  };
  for (const auto& [reason, options] : wrong) {
    const Result result = on_cluster(PATH_pi_tasks, options);
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_NE(result.err.find(reason), std::string::npos) << result.err;
    EXPECT_EQ(multinode::testing::occurrences(result.err, "\n"), 1u) << result.err;
  }
  std::ofstream(state_ + "/token") << std::string(64, '0') << "\n";
  const Result refused = on_cluster(PATH_pi_tasks, {});
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("refuses the token"), std::string::npos) << refused.err;
}

TEST_F(TaskPrograms, TooFewSlotsAreNamed) {
  const Result result = on_cluster(PATH_pi_tasks, {"--num-workers", "3", "--timeout", "0.2"});
  EXPECT_EQ(result.status, 1);
  EXPECT_NE(result.err.find("only 0 of 3 runners have started within 200 ms: 3 workers want 3 CPUs"), std::string::npos)
      << result.err;
}

TEST_F(TaskPrograms, ManyQueuedTasksAreAllRightInBoundedMemory) {
  constexpr std::size_t most = 64 << 20;
  const Result result = on_cluster(PATH_task_rate, {"--num-workers", "2", "--seconds", "0.05", "--queued", "100000"});
  ASSERT_EQ(result.status, 0) << result.all();
  const json figures = json::parse(result.out);
  EXPECT_EQ(figures["right"], true);
  EXPECT_EQ(figures["sum"], 333328333350000);
  EXPECT_LT(figures["client_peak_bytes"].get<std::size_t>(), most);
  EXPECT_LT(figures["runner_peak_bytes"].get<std::size_t>(), most);
  EXPECT_LT(peak_memory(), most);
}

}  // namespace task_programs_test
