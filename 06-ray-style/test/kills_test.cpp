// A training survives the deaths of its processes and nodes, and ends as if nothing had happened. The environment
// variable MULTINODE_KILLS says how many there are of each kind (4); two of them fall on each run.
#include "local_cluster.hpp"

#include <multinode/seconds.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <regex>
#include <sstream>
#include <thread>

namespace kills_test {

using multinode::testing::Process;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

constexpr int steps = 120, batch = 64, workers = 4, checkpoint_every = 5;

// Images for one epoch of `steps` steps; image i is of class i mod 10 and has a bright bar there, with some noise.
void write_data_set(const std::filesystem::path& folder) {
  for (const auto& [part, count] : {std::pair{"train", steps * batch}, std::pair{"t10k", 100}}) {
    const auto write = [&, part = part](const std::string& kind, const std::vector<int>& sizes,
                                        const std::string& values) {
      std::ofstream file(folder / (part + kind), std::ios::binary);
      file << std::string("\0\0\b", 3) << static_cast<char>(sizes.size());
      for (const int size : sizes)
        for (const int shift : {24, 16, 8, 0}) file << static_cast<char>(size >> shift);
      file << values;
    };
    std::mt19937 random(1);
    std::string pixels, labels;
    for (int i = 0; i < count; ++i) {
      labels += static_cast<char>(i % 10);
      for (int p = 0; p < 784; ++p) pixels += static_cast<char>(random() % 100 + (p / 78 == i % 10 ? 127 : 0));
    }
    write("-images-idx3-ubyte", {count, 28, 28}, pixels);
    write("-labels-idx1-ubyte", {count}, labels);
  }
}

std::string median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  char text[80];
  std::snprintf(text, sizeof text, "%.2f s (%.2f to %.2f)", values[values.size() / 2], values.front(), values.back());
  return text;
}

// A client whose lines are read one by one, as they come.
class Client {
 public:
  Client(const std::vector<std::string>& command, std::filesystem::path file)
      : file_(std::move(file)), process_(in_shell(command, file_)) {}

  // The next line that has `what` in it; nothing, if the client ended or `patience` passed without.
  std::optional<std::string> wait_for(const std::string& what) {
    for (const auto end = Clock::now() + multinode::testing::patience; Clock::now() < end;
         std::this_thread::sleep_for(1ms)) {
      const bool running = is_running(process_.pid());
      while (read_line())
        if (lines_.back().find(what) != std::string::npos) return lines_.back();
      if (!running) return std::nullopt;
    }
    return std::nullopt;
  }
  int wait() {
    const int status = process_.wait().status;
    while (read_line()) {
    }
    return status;
  }
  const std::vector<std::string>& lines() const { return lines_; }
  std::string text() const {
    std::string all;
    for (const std::string& line : lines_) all += line + "\n";
    return all;
  }

 private:
  static std::vector<std::string> in_shell(std::vector<std::string> command, const std::string& file) {
    command.insert(command.begin(), {"sh", "-c", "exec \"$@\" >>\"$0\" 2>&1", file});
    std::ofstream{file};
    return command;
  }
  bool read_line() {
    std::string line;
    stream_.clear();
    stream_.seekg(read_);
    if (!std::getline(stream_, line) || stream_.eof()) return false;  // not whole yet
    read_ = stream_.tellg();
    lines_.push_back(line);
    return true;
  }

  std::filesystem::path file_;
  Process process_;
  std::ifstream stream_{file_};
  std::streampos read_ = 0;
  std::vector<std::string> lines_;
};

// The number behind `before`.
std::optional<int> number_in(const std::string& line, const std::string& before) {
  const auto at = line.find(before);
  if (at == line.npos) return std::nullopt;
  return std::stoi(line.substr(at + before.size()));
}

class Kills : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    data_ = std::make_unique<TemporaryFolder>();
    write_data_set(data_->path());
    cluster_ = std::make_unique<LocalCluster>();
    nodes_.clear();
    for (int i = 0; i < 3; ++i) nodes_.push_back(cluster_->start_node(2));
    Client& undisturbed = submit("undisturbed");
    ASSERT_EQ(undisturbed.wait(), 0) << undisturbed.text();
    parameters_ = parameters_of(undisturbed);
    ASSERT_NE(parameters_, "");
  }
  static void TearDownTestSuite() {
    client_.reset();
    nodes_.clear();
    cluster_.reset();
    data_.reset();
  }

  static Client& submit(const std::string& name) {
    std::istringstream list("--num-workers " + std::to_string(workers) +
                            " --max-failures 2 -- fashion_mnist --backend gloo --epochs 1 --log-every 1");
    std::vector<std::string> words(std::istream_iterator<std::string>(list), {});
    words.insert(words.end(), {"--data", data_->path().string(), "--checkpoint", (*data_ / name).string()});
    words.insert(words.end(), {"--batch-size", std::to_string(batch)});
    words.insert(words.end(), {"--checkpoint-every", std::to_string(checkpoint_every)});
    client_ = std::make_unique<Client>(cluster_->command("submit", words), *data_ / (name + ".txt"));
    return *client_;
  }
  static std::string parameters_of(const Client& client) {
    const std::string text = client.text();
    const auto end = text.find(" on every rank");
    return end == text.npos ? "" : text.substr(end - 16, 16);
  }

  // The processes of the newest attempt, in order of rank, with the process numbers of their nodes.
  struct Worker {
    pid_t pid;
    pid_t node;
  };
  static std::vector<Worker> workers_of(const Client& client) {
    std::map<int, pid_t> numbers;
    std::string status = multinode::testing::run(cluster_->command("status")).out;
    status.erase(std::min(status.find("\njob "), status.size()));  // the second table
    const std::regex row("\\n +([0-9]+) +[^ ]+ +([0-9]+) ");
    for (std::sregex_iterator at(status.begin(), status.end(), row), stop; at != stop; ++at)
      numbers[std::stoi((*at)[1])] = std::stoi((*at)[2]);
    const std::regex on_node(": node ([0-9]+) \\(.*\\) has rank ([0-9]+) and up, pids(.*)");
    std::vector<Worker> found;
    for (const std::string& line : client.lines())
      if (std::smatch match; std::regex_search(line, match, on_node)) {
        if (std::stoi(match[2]) == 0) found.clear();
        std::istringstream pids(match[3]);
        for (pid_t pid = 0; pids >> pid;) found.push_back({pid, numbers[std::stoi(match[1])]});
      }
    return found;
  }

  // Runs trainings with two kills each, at random steps: `kill` kills something of the processes that it is given, and
  // `mend` is called when the training has ended.
  template <class Kill, class Mend>
  void campaign(const std::string& name, Kill kill, Mend mend) {
    const char* const given = std::getenv("MULTINODE_KILLS");
    const int kills = given ? std::stoi(given) : 2;
    std::vector<double> detected, resumed;
    for (int run = 0; 2 * run < kills; ++run) {
      Client& client = submit(name + std::to_string(run));
      int at_least = 2;
      for (int attempt = 0; attempt < 2; ++attempt) {
        const int step = std::uniform_int_distribution(at_least, at_least + steps / 2 - 20)(random_);
        ASSERT_TRUE(client.wait_for("step " + std::to_string(step) + " of")) << client.text();
        const std::vector<Worker> all = workers_of(client);
        ASSERT_EQ(all.size(), static_cast<std::size_t>(workers));
        for (const Worker& worker : all) ASSERT_TRUE(node_of(worker.node)) << worker.node;
        const auto start = Clock::now();
        kill(all);
        ASSERT_TRUE(client.wait_for("will start again: ")) << client.text();
        detected.push_back(multinode::seconds_since(start));
        ASSERT_TRUE(client.wait_for("images to learn from")) << client.text();
        ASSERT_TRUE(client.wait_for(": loss")) << client.text();
        resumed.push_back(multinode::seconds_since(start));
        at_least = steps / 2;
      }
      ASSERT_EQ(client.wait(), 0) << client.text();
      EXPECT_EQ(parameters_of(client), parameters_) << client.text();
      show(client);
      mend();
    }
    std::cout << name << ", " << detected.size() << " kills, median (least to most): seen after " << median_of(detected)
              << ", training again after " << median_of(resumed) << std::endl;
  }

  // The steps between which the kills were, as rank 0 reported them.
  static void show(const Client& client) {
    int last = 0, killed = 0, from = 0, kills = 0;
    enum { trains, stops, starts } phase = trains;
    for (const std::string& line : client.lines()) {
      if (line.find("will start again: ") != line.npos) phase = stops;  // what the stopped ones have said still comes
      if (phase == stops && line.find("images to learn from") != line.npos) {
        phase = starts;
        killed = last;
        from = 0;  // where there was no checkpoint yet
      }
      from = number_in(line, ", after step ").value_or(from);
      if (line.find(": loss") == line.npos) continue;
      last = number_in(line, " step ").value_or(last);
      if (phase != starts) continue;
      phase = trains;
      ++kills;
      std::cout << "killed after step " << killed << ", went on after step " << from << "; ";
      EXPECT_TRUE(from <= killed + 1 && from > killed - 3 * checkpoint_every) << client.text();
    }
    EXPECT_EQ(kills, 2) << client.text();
    std::cout << std::endl;
  }

  static Process* node_of(pid_t pid_of_node) {
    for (const auto& node : nodes_)
      if (node->pid() == pid_of_node) return node.get();
    return nullptr;
  }

  static inline std::unique_ptr<TemporaryFolder> data_;
  static inline std::unique_ptr<LocalCluster> cluster_;
  static inline std::vector<std::unique_ptr<Process>> nodes_;
  static inline std::unique_ptr<Client> client_;
  static inline std::string parameters_;  // at the end of an undisturbed training
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(Kills, OfAProcess) {
  campaign(
      "process", [this](const std::vector<Worker>& all) { ::kill(all[random_() % all.size()].pid, SIGKILL); }, [] {});
}

TEST_F(Kills, OfANode) {
  std::vector<Worker> killed;
  campaign(
      "node",
      [&](const std::vector<Worker>& all) {
        const pid_t pid_of_node = all[random_() % all.size()].node;
        std::copy_if(all.begin(), all.end(), std::back_inserter(killed),
                     [&](const Worker& w) { return w.node == pid_of_node; });
        ::kill(pid_of_node, SIGKILL);
        nodes_.push_back(cluster_->start_node(2));
      },
      [&] {
        for (const Worker& worker : killed) EXPECT_FALSE(is_running(worker.pid)) << worker.pid;
        std::erase_if(nodes_, [](const auto& node) { return !is_running(node->pid()); });
        EXPECT_EQ(nodes_.size(), 3u);
      });
}

// A host that hangs, with all that runs on it, is given up after 3 s. When it wakes up, the node ends what it has, says
// so, and ends.
TEST_F(Kills, OfAFrozenNode) {
  std::vector<Process*> frozen;
  std::vector<Worker> lost;
  campaign(
      "frozen node",
      [&](const std::vector<Worker>& all) {
        const pid_t pid_of_node = all[random_() % all.size()].node;
        frozen.push_back(node_of(pid_of_node));
        ::kill(pid_of_node, SIGSTOP);
        for (const Worker& worker : all)
          if (worker.node == pid_of_node) {
            lost.push_back(worker);
            ::kill(worker.pid, SIGSTOP);
          }
        nodes_.push_back(cluster_->start_node(2));
      },
      [&] {
        for (const Worker& worker : lost) ::kill(worker.pid, SIGCONT);
        for (Process* const node : std::exchange(frozen, {})) {
          node->signal(SIGCONT);
          const auto result = node->wait();
          EXPECT_EQ(result.status, 1);
          EXPECT_NE(result.err.find("is gone"), std::string::npos) << result.err;
          std::erase_if(nodes_, [&](const auto& n) { return n.get() == node; });
        }
        for (const Worker& worker : std::exchange(lost, {})) EXPECT_FALSE(is_running(worker.pid)) << worker.pid;
      });
}

// The last of them: nothing works without a head.
TEST_F(Kills, OfTheHeadEndAll) {
  Client& client = submit("head");
  ASSERT_TRUE(client.wait_for("step 3 of")) << client.text();
  const std::vector<Worker> all = workers_of(client);
  ASSERT_EQ(all.size(), static_cast<std::size_t>(workers));
  const auto start = Clock::now();
  cluster_->head().signal(SIGKILL);
  EXPECT_EQ(client.wait(), 1);
  EXPECT_NE(client.text().find("cluster: the head at " + cluster_->address()), std::string::npos) << client.text();
  for (const auto& node : nodes_) {
    const auto result = node->wait();
    EXPECT_EQ(result.status, 1);
    EXPECT_NE(result.err.find("the head at " + cluster_->address() + " is gone"), std::string::npos) << result.err;
  }
  for (const Worker& worker : all) EXPECT_FALSE(is_running(worker.pid)) << worker.pid;
  std::cout << "all ended " << multinode::seconds_since(start) << " s after the head" << std::endl;
  nodes_.clear();
}

}  // namespace kills_test
