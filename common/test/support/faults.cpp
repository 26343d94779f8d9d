#include <test/support/faults.hpp>

#include <signal.h>

#include <algorithm>
#include <cstdlib>
#include <sstream>
#include <stdexcept>

namespace multinode::testing {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

std::string name_of(Starter starter) {
  return starter == Starter::bare ? "bare" : starter == Starter::mpirun ? "mpirun" : "mnrun";
}

Ranks::Ranks(Starter starter, int count, const std::vector<std::string>& command,
             std::map<std::string, std::string> environment)
    : starter_(starter) {
  if (starter == Starter::mpirun) {
    processes_.push_back(std::make_unique<Process>(under_mpirun(count, command), environment));
  } else if (starter == Starter::mnrun) {
    const char* path = std::getenv("MNRUN");
    std::vector<std::string> argv{path ? path : "mnrun", "--standalone", "--nproc-per-node", std::to_string(count)};
    argv.insert(argv.end(), command.begin(), command.end());
    processes_.push_back(std::make_unique<Process>(argv, environment));
  } else {
    environment.insert({{"WORLD_SIZE", std::to_string(count)},
                        {"LOCAL_WORLD_SIZE", std::to_string(count)},
                        {"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", std::to_string(port_.emplace().number())},
                        {"OMP_NUM_THREADS", "1"}});
    for (int rank = 0; rank < count; ++rank) {
      environment["RANK"] = environment["LOCAL_RANK"] = std::to_string(rank);
      processes_.push_back(std::make_unique<Process>(command, environment));
    }
  }
}

std::optional<std::string> Ranks::wait_for(const std::string& pattern, std::chrono::milliseconds timeout) {
  const auto match = processes_[0]->wait_for(pattern, timeout);
  if (!match) return std::nullopt;
  return (*match)[match->size() > 1 ? 1 : 0];
}

void Ranks::signal(int rank, int number) {
  signalled_ = rank;
  since_ = Clock::now();
  if (starter_ == Starter::bare) return processes_[std::size_t(rank)]->signal(number);
  const pid_t pid =
      processes_[0]->find(starter_ == Starter::mpirun ? mpi_rank_variable() : "RANK", std::to_string(rank));
  if (pid == 0) throw std::runtime_error("no process is rank " + std::to_string(rank));
  since_ = Clock::now();
  kill(pid, number);
}

Ranks::End Ranks::wait(std::chrono::milliseconds timeout) {
  End end{true, 0, 0, ""};
  const Clock::time_point deadline = Clock::now() + timeout;
  // Survivors first: the signalled rank may be stopped, and then it ends only with its Process object.
  for (const bool survivors : {true, false})
    for (std::size_t i = 0; i < processes_.size(); ++i) {
      const bool survivor = starter_ != Starter::bare || int(i) != signalled_;
      if (survivor != survivors) continue;
      const auto left = survivor ? std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()) : 0ms;
      const Result result = processes_[i]->wait(std::max(left, 0ms));
      end.output += result.all();
      if (!survivor) continue;
      if (result.status == 0 || result.status == 128 + SIGKILL)
        // A launcher may return 128 + SIGKILL for its killed rank; a bare process has it only if this test killed it.
        end.survivors_ended =
            end.survivors_ended && starter_ != Starter::bare && result.status != 0 && Clock::now() < deadline;
      end.status = std::max(end.status, result.status);
      end.seconds = std::chrono::duration<double>(Clock::now() - since_).count();
    }
  return end;
}

std::string kill_one(Starter starter, int count, const std::vector<std::string>& command, const std::string& step,
                     int first_step, int last_step, std::mt19937& random, std::string* record) {
  const int rank = std::uniform_int_distribution(0, count - 1)(random);
  const int wanted = std::uniform_int_distribution(first_step, last_step)(random);
  std::string pattern = step;
  pattern.replace(pattern.find("(\\d+)"), 5, "(" + std::to_string(wanted) + ")");

  Ranks ranks(starter, count, command);
  if (!ranks.wait_for(pattern))
    return "step " + std::to_string(wanted) + " was never printed:\n" + ranks.wait(1s).output;
  ranks.signal(rank, SIGKILL);
  const Ranks::End end = ranks.wait();

  // The last step that rank 0 printed proves that the run had started.
  std::string last;
  for (const Match& printed : matches_in(end.output, step)) last = printed.at(1);
  std::ostringstream line;
  line << "rank " << rank << " killed after step " << wanted << " (last printed: " << last << "): ended after "
       << end.seconds << " s with status " << end.status << "\n";
  if (record) *record += line.str();

  std::string complaints;
  if (!end.survivors_ended) complaints += "a survivor did not end on its own, or ended with status 0\n";
  if (end.seconds > 30) complaints += "the survivors ended after more than 30 s\n";
  const bool hydra = starter == Starter::mpirun && !is_open_mpi();
  if (!hydra && match_in(end.output, "rank " + std::to_string(rank) + "\\b").empty())
    complaints += "the output does not name the dead rank\n";
  return complaints.empty() ? ""
                            : line.str() + complaints +
                                  end.output.substr(end.output.size() - std::min<std::size_t>(end.output.size(), 2000));
}

}  // namespace multinode::testing
