// A training survives the deaths of its processes and nodes, at random steps: its parameters are those of an
// undisturbed training.
#include "local_cluster.hpp"

#include <multinode/base/text.hpp>

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <sstream>

namespace kills_test {

constexpr int steps = 300;

// Random images for one epoch of `steps` steps.
void write_data_set(const std::filesystem::path& folder) {
  std::mt19937 random(1);
  for (const auto& [part, count] : {std::pair{"train", steps * 64}, {"t10k", 100}})
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
  Kills() {
    write_data_set(data_.path());
    for (int i = 0; i < 3; ++i) add_node();
    submit();
    parameters_ = wait_for_parameters();
  }

  void add_node() { nodes_[next_node_++] = start_node(2); }
  void submit() {
    record_ = data_ / ("said." + std::to_string(++job_));
    Words words = command("run", {"--num-workers", "4", "--max-failures", "3", "--", PATH_fashion_mnist});
    for (const char* option :
         {"--backend gloo", "--epochs 1", "--log-every 1", "--batch-size 64", "--checkpoint-every 5"})
      words.push_back(option);
    const std::string options =
        "--data " + data_.path().string() + " --checkpoint " + (data_ / std::to_string(job_)).string();
    words.push_back(options + " >" + record_.string());
    read_ = 0;
    client_.emplace(Words{"sh", "-c", "exec " + multinode::join(words, " ")});
  }

  // Waits for the next line of the job's output with `pattern`. Returns what its group matched.
  std::string wait_for(const std::string& pattern) {
    std::string text;
    multinode::testing::Match match;
    multinode::testing::soon([&] {
      const bool running = is_running(client_->pid());
      text = multinode::testing::text_of(record_).substr(read_);
      match = multinode::testing::match_in(text, pattern);
      return !match.empty() || !running;
    });
    if (match.empty()) throw std::runtime_error("no '" + pattern + "' in the rest of the output:\n" + text);
    read_ += text.find(match[0]) + match[0].size();
    return match.size() > 1 ? match[1] : "";
  }
  std::string wait_for_parameters() { return wait_for("parameters: ([0-9a-f]{16}) on every rank"); }

  static std::string children(const std::string& pids) {  // separated by commas
    std::string found = multinode::testing::run({"pgrep", "-d,", "-P", pids}).out;
    return found.substr(0, found.find('\n'));
  }
  // A node that has processes of the job, and these: the children of its children.
  std::pair<int, std::vector<pid_t>> any_node() {
    std::vector<std::pair<int, std::vector<pid_t>>> found;
    for (const auto& [number, node] : nodes_) {
      std::istringstream text(children(children(std::to_string(node->pid()))));
      std::vector<pid_t> pids;
      for (std::string pid; std::getline(text, pid, ',');) pids.push_back(std::stoi(pid));
      if (!pids.empty()) found.emplace_back(number, pids);
    }
    return found.at(random_() % std::max(found.size(), std::size_t{1}));
  }

  // Does it at a random step of this quarter, and waits for the next attempt, which must resume from a recent
  // checkpoint.
  template <class Fault>
  void disturb(int quarter, Fault fault) {
    const int least = 15 + quarter * steps / 4;
    const int step = std::uniform_int_distribution(least, least + steps / 6)(random_);
    wait_for("step " + std::to_string(step) + " of");
    fault();
    wait_for("will start again: ");
    EXPECT_GT(std::stoi(wait_for("resumes from .*, after step ([0-9]+) of")), step - 15);
  }

  const TemporaryFolder data_;
  std::map<int, std::unique_ptr<Process>> nodes_;
  int next_node_ = 0, job_ = 0;
  std::optional<Process> client_;
  std::filesystem::path record_;  // the client's output
  std::size_t read_ = 0;          // bytes of it
  std::string parameters_;        // at the end of an undisturbed training
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(Kills, OfAProcessANodeAndAFrozenNode) {
  submit();
  disturb(0, [this] { ::kill(any_node().second.front(), SIGKILL); });

  const auto lose = [this](bool freeze) {
    auto [number, pids] = any_node();
    std::unique_ptr<Process> node = std::move(nodes_.at(number));
    nodes_.erase(number);
    node->signal(freeze ? SIGSTOP : SIGKILL);
    for (const pid_t pid : pids)
      if (freeze) ::kill(pid, SIGSTOP);
    add_node();
    return std::pair(std::move(node), pids);
  };
  std::pair<std::unique_ptr<Process>, std::vector<pid_t>> killed, frozen;
  disturb(1, [&] { killed = lose(false); });
  disturb(2, [&] { frozen = lose(true); });  // the head gives it up after 3 s
  EXPECT_EQ(wait_for_parameters(), parameters_);
  EXPECT_EQ(client_->wait().status, 0);
  for (const pid_t pid : killed.second) EXPECT_FALSE(is_running(pid)) << pid;

  // When the frozen host continues, its node kills its processes, logs the reason and ends.
  for (const pid_t pid : frozen.second) ::kill(pid, SIGCONT);
  frozen.first->signal(SIGCONT);
  const auto result = frozen.first->wait();
  EXPECT_EQ(result.status, 1);
  EXPECT_SAYS(result.err, "is gone");
  for (const pid_t pid : frozen.second) EXPECT_FALSE(is_running(pid)) << pid;
}

}  // namespace kills_test
