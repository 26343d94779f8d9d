#include "process.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/process/process_tree.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <utility>

namespace image_check {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

std::string quoted(const std::string& word) {
  const bool plain =
      !word.empty() &&
      word.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=:,./@%^") ==
          std::string::npos;
  if (plain) return word;
  std::string text = "'";
  for (const char letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

constexpr std::chrono::seconds helpers_end{1};    // a launcher's helpers have a moment to end by themselves
constexpr std::chrono::seconds keeper_works{30};  // even on a busy machine

// How long the threads of this process's descendants have waited for a CPU so far, in seconds, together. Only threads
// that were preempted more often than they slept count: one that sleeps and wakes waits for a CPU, too, but hardly uses
// it. nullopt: a process is stopped (SIGSTOP), and the others may wait for it.
std::optional<double> waited_for_cpus() {
  double seconds = 0;
  for (const pid_t process : multinode::descendants()) {
    if (multinode::process_state(process).state == 'T') return std::nullopt;
    const auto threads = std::filesystem::path("/proc") / std::to_string(process) / "task";
    for (const auto& thread : multinode::names_in(threads)) {
      const auto status = multinode::read_text(threads / thread / "status").value_or("");
      double ran = 0, waited = 0, by_itself = 0, by_others = 0;  // ns, and how often it left its CPU
      std::istringstream(multinode::read_text(threads / thread / "schedstat").value_or("")) >> ran >> waited;
      std::sscanf(status.c_str() + std::min(status.find("\nvoluntary_ctxt"), status.size()),
                  " voluntary_ctxt_switches: %lf nonvoluntary_ctxt_switches: %lf", &by_itself, &by_others);
      if (by_others > by_itself) seconds += waited / 1e9;
    }
  }
  return seconds;
}

Outcome keep(const Command& command, const Variables& variables, int log, multinode::Deadline deadline,
             KillDelays kill_delays, pid_t parent) {
  ::signal(SIGCHLD, SIG_DFL);  // where it is ignored, the kernel keeps no exit status
  sigset_t wanted;
  sigemptyset(&wanted);
  for (const int signal : {SIGCHLD, SIGTERM, SIGINT, SIGHUP}) sigaddset(&wanted, signal);
  sigprocmask(SIG_SETMASK, &wanted, nullptr);
  multinode::adopt_orphans();
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  Outcome outcome;
  if (getppid() != parent) return {.exit_status = 128 + SIGTERM};

  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
  const multinode::Descriptor input(open("/dev/null", O_RDONLY | O_CLOEXEC));
  static std::optional<multinode::ChildProcess> started;  // not to be waited for at the end, where it may be stuck
  try {
    const char* const path = std::getenv("PATH");
    started.emplace(
        multinode::ChildCommand{.arguments = command,
                                .file = multinode::find_program(command.at(0), path ? path : "/usr/bin:/bin"),
                                .descriptors = {input.get(), log, log},
                                .own_group = true,
                                .default_signals = true});
  } catch (const multinode::StartError& error) {
    multinode::write_all(log, std::string("image-check: ") + error.what() + "\n", "the log");
    return {.exit_status = error.status};
  }
  const pid_t child = started->pid();
  bool killing = false, running = true;  // killing: SIGTERM was sent, and `deadline` is that of SIGKILL
  const auto started_at = Clock::now();
  auto look = started_at + std::chrono::seconds(2);  // rarely, because it costs time
  while (running) {
    multinode::reap_children([&](pid_t ended, int status) {
      if (ended != child) return;
      running = false;
      outcome.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    });
    if (!running) break;
    if (killing && deadline.passed()) break;
    const auto left = std::max(deadline.left(), milliseconds(1));
    const timespec time{left.count() / 1000, left.count() % 1000 * 1'000'000};
    const int signal = sigtimedwait(&wanted, nullptr, &time);
    const bool stop = signal == SIGTERM || signal == SIGINT || signal == SIGHUP;
    const bool end = !killing && (stop || deadline.passed());
    if (const auto now = Clock::now(); end || (!killing && now >= look)) {
      const auto waited = waited_for_cpus();  // less than before, if some have ended
      outcome.waited_for_cpus = waited ? std::max(*waited, outcome.waited_for_cpus) : 0;
      look = now + (now - started_at) / 4;
    }
    if (end) {
      outcome.timed_out = !stop;
      killing = true;
      deadline = multinode::Deadline(kill_delays.terminated);
      kill(child, SIGTERM);
      kill(child, SIGCONT);
    }
  }
  const auto kill_at = Clock::now() + (killing ? milliseconds(0) : milliseconds(helpers_end));
  std::set<pid_t> counted;
  for (; multinode::reap_children(); usleep(10'000)) {
    if (Clock::now() < kill_at) continue;
    for (const pid_t process : multinode::kill_descendants())
      if (!killing && counted.insert(process).second) ++outcome.left_over;
    if (Clock::now() >= kill_at + kill_delays.killed) {
      for (const pid_t process : multinode::descendants())  // one that only waits for a CPU ends with it
        outcome.stuck += multinode::process_state(process).state != 'R';
      break;
    }
  }
  if (killing && outcome.exit_status == 0) outcome.exit_status = 128 + SIGTERM;
  return outcome;
}

}  // namespace

std::string shell_words(const Variables& variables, const Command& command) {
  std::string text;
  for (const auto& [name, value] : variables) text += name + "=" + quoted(value) + " ";
  for (const auto& word : command) text += quoted(word) + " ";
  if (!text.empty()) text.pop_back();
  return text;
}

bool had_no_cpu(const Outcome& outcome, double limit) {
  const double seconds = outcome.seconds.count();
  return outcome.stuck == 0 &&
         seconds - std::min(outcome.waited_for_cpus, outcome.other_work * seconds) < std::min(limit, seconds) / 2;
}

MemoryFile::MemoryFile() : file_(multinode::check_errno(memfd_create("image-check", MFD_CLOEXEC), "memfd_create")) {}

std::string MemoryFile::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_.get());
}

std::string MemoryFile::text() const {
  std::ostringstream text;
  text << std::ifstream(path()).rdbuf();
  return text.str();
}

Processes::Processes(const Command& command, const Variables& variables, const std::filesystem::path& log,
                     milliseconds deadline, KillDelays kill_delays)
    : started_(Clock::now()),
      latest_(deadline + kill_delays.terminated + kill_delays.killed + helpers_end + keeper_works) {
  const multinode::Descriptor output = multinode::open_in_place(log, true);
  auto [from, to] = multinode::make_pipe();
  const pid_t parent = getpid();
  keeper_ = multinode::check_errno(fork(), "fork");
  if (keeper_ == 0) {
    const Outcome outcome = keep(command, variables, output.get(), multinode::Deadline(deadline), kill_delays, parent);
    const bool written = write(to.get(), &outcome, sizeof outcome) == sizeof outcome;
    _exit(written ? 0 : 1);
  }
  result_ = std::move(from);
}

Processes::~Processes() {
  if (outcome_) return;
  stop();
  wait(KillDelays().terminated + KillDelays().killed + helpers_end + keeper_works);
}

std::optional<Outcome> Processes::wait(milliseconds at_most) {
  if (outcome_) return outcome_;
  pollfd ready{result_.get(), POLLIN, 0};
  for (multinode::Deadline limit(at_most); poll(&ready, 1, static_cast<int>(limit.left().count())) <= 0;) {
    if (!latest_.passed()) {
      if (limit.passed()) return std::nullopt;
      continue;
    }
    kill(keeper_, SIGKILL);  // it hangs itself; its pipe closes
    return outcome_ = Outcome{128 + SIGKILL, true, 0, 1, -1, Clock::now() - started_};
  }
  Outcome outcome;
  if (read(result_.get(), &outcome, sizeof outcome) != sizeof outcome) outcome = {.exit_status = 128 + SIGKILL};
  waitpid(keeper_, nullptr, 0);
  outcome.seconds = Clock::now() - started_;
  outcome.other_work = node_check::other_work_since(at_start_);
  return outcome_ = outcome;
}

Outcome Processes::end() {
  while (!wait(milliseconds(1000))) continue;
  return *outcome_;
}

void Processes::stop() { kill(keeper_, SIGTERM); }

}  // namespace image_check
