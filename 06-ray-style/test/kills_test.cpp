// A training survives the deaths of its processes and nodes: its parameters are those of an undisturbed training. Each
// training has two kills, at random steps. MULTINODE_KILLS in the environment is the number of kills of each kind
// (default: 2).
#include "local_cluster.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <sstream>

namespace kills_test {

constexpr int steps = 120, batch = 64, workers = 4, checkpoint_every = 5;

// Random images for one epoch of `steps` steps.
void write_data_set(const std::filesystem::path& folder) {
  std::mt19937 random(1);
  for (const auto& [part, count] : {std::pair{"train", steps * batch}, {"t10k", 100}})
    for (const bool images : {true, false}) {
      const std::vector<int> sizes = images ? std::vector{count, 28, 28} : std::vector{count};
      std::ofstream file(folder / (part + std::string(images ? "-images-idx3-ubyte" : "-labels-idx1-ubyte")));
      file << std::string("\0\0\b", 3) << static_cast<char>(sizes.size());
      for (const int size : sizes)
        for (const int shift : {24, 16, 8, 0}) file << static_cast<char>(size >> shift);
      for (int i = 0; i < count * (images ? 784 : 1); ++i) file << static_cast<char>(random() % (images ? 100 : 10));
    }
}

class Kills : public ClusterTest {
 protected:
  struct Worker {
    pid_t pid;
    int node;
  };

  Kills() {
    write_data_set(data_.path());
    for (int i = 0; i < 3; ++i) add_node();
    submit();
    parameters_ = wait_for_parameters();
  }

  void add_node() {
    const int number = next_node_++;  // the head counts in the same way
    nodes_[number] = start_node(2);
  }
  void submit() {
    record_ = data_ / ("said." + std::to_string(++job_));
    Words words = {"--num-workers", std::to_string(workers), "--max-failures", "2", "--", PATH_fashion_mnist};
    words.insert(words.end(), {"--backend", "gloo", "--epochs", "1", "--log-every", "1", "--data", data_.path()});
    words.insert(words.end(), {"--batch-size", std::to_string(batch), "--checkpoint", data_ / std::to_string(job_)});
    words.insert(words.end(), {"--checkpoint-every", std::to_string(checkpoint_every)});
    Words shell = {"sh", "-c", "exec \"$@\" >" + record_.string(), "sh"};
    words = command("run", words);
    shell.insert(shell.end(), words.begin(), words.end());
    read_ = 0;
    client_.emplace(shell);
  }

  // Waits for the next line of the job's output with `pattern`. Returns what its group matched.
  std::string wait_for(const std::string& pattern) {
    const std::regex regex(pattern);
    std::string text;
    std::smatch match;
    multinode::testing::soon([&] {
      const bool running = is_running(client_->pid());
      text = multinode::testing::text_of(record_).substr(read_);
      return std::regex_search(text, match, regex) || !running;
    });
    if (match.empty()) throw std::runtime_error("no '" + pattern + "' in the rest of the output:\n" + text);
    read_ += static_cast<std::size_t>(match.position() + match.length());
    return match[1];
  }
  std::string wait_for_parameters() { return wait_for("parameters: ([0-9a-f]{16}) on every rank"); }

  // The processes of the newest attempt, in order of rank.
  std::vector<Worker> all_workers() const {
    const std::string text = multinode::testing::text_of(record_);
    const std::regex on_node(": node ([0-9]+) \\(.*\\) has rank ([0-9]+) and up, pids(.*)");
    std::vector<Worker> found;
    for (std::sregex_iterator line(text.begin(), text.end(), on_node), end; line != end; ++line) {
      if ((*line)[2] == "0") found.clear();
      std::istringstream pids((*line)[3]);
      for (pid_t pid = 0; pids >> pid;) found.push_back({pid, std::stoi((*line)[1])});
    }
    EXPECT_EQ(found.size(), std::size_t{workers}) << text;
    return found;
  }
  Worker any_worker() { return all_workers()[random_() % workers]; }
  std::vector<pid_t> pids_on(int node) const {
    std::vector<pid_t> pids;
    for (const Worker& worker : all_workers())
      if (worker.node == node) pids.push_back(worker.pid);
    return pids;
  }

  // Each kill happens during an attempt, and the next attempt must resume from a recent checkpoint.
  template <class Kill>
  void campaign(Kill kill) {
    const char* const given = std::getenv("MULTINODE_KILLS");
    for (int left = given ? std::stoi(given) : 2; left > 0; left -= 2) {
      submit();
      for (const int least : {3 * checkpoint_every, steps / 2}) {
        const int step = std::uniform_int_distribution(least, least + steps / 3)(random_);
        wait_for("step " + std::to_string(step) + " of");
        kill();
        wait_for("will start again: ");
        const int from = std::stoi(wait_for("resumes from .*, after step ([0-9]+) of"));
        EXPECT_GT(from, step - 3 * checkpoint_every);
        std::cout << "killed after step " << step << ", went on after step " << from << std::endl;
      }
      EXPECT_EQ(wait_for_parameters(), parameters_);
      EXPECT_EQ(client_->wait().status, 0);
    }
  }

  const TemporaryFolder data_;
  std::map<int, std::unique_ptr<Process>> nodes_;  // node 0 is the head's own, which has no CPUs
  int next_node_ = 1, job_ = 0;
  std::optional<Process> client_;
  std::filesystem::path record_;  // the client's output
  std::size_t read_ = 0;          // bytes of it
  std::string parameters_;        // at the end of an undisturbed training
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(Kills, OfAProcess) {
  campaign([this] { ::kill(any_worker().pid, SIGKILL); });
}

TEST_F(Kills, OfANode) {
  std::vector<pid_t> lost;
  campaign([&] {
    const int node = any_worker().node;
    const std::vector<pid_t> pids = pids_on(node);
    lost.insert(lost.end(), pids.begin(), pids.end());
    nodes_.at(node)->signal(SIGKILL);
    nodes_.erase(node);
    add_node();
  });
  for (const pid_t pid : lost) EXPECT_FALSE(is_running(pid)) << pid;
}

// The head gives up a frozen host after 3 s. When the host continues, its node kills its processes, logs the reason and
// ends.
TEST_F(Kills, OfAFrozenNode) {
  std::map<int, std::vector<pid_t>> frozen;
  campaign([&] {
    const int node = any_worker().node;
    frozen[node] = pids_on(node);
    nodes_.at(node)->signal(SIGSTOP);
    for (const pid_t pid : frozen[node]) ::kill(pid, SIGSTOP);
    add_node();
  });
  for (const auto& [node, pids] : frozen) {
    for (const pid_t pid : pids) ::kill(pid, SIGCONT);
    nodes_.at(node)->signal(SIGCONT);
    const auto result = nodes_.at(node)->wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_SAYS(result.err, "is gone");
    for (const pid_t pid : pids) EXPECT_FALSE(is_running(pid)) << pid;
  }
}

}  // namespace kills_test
