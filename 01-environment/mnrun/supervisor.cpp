#include <mnrun/supervisor.hpp>

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/net/address.hpp>
#include <multinode/node/limits.hpp>

#include <fmt/core.h>

#include <sys/resource.h>

#include <csignal>
#include <cstring>

namespace mnrun {

using multinode::Signals;
using std::chrono::milliseconds;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

// The signals that mnrun handles itself. A signal that was ignored at the start (nohup) stays ignored.
std::vector<int> handled_signals() {
  std::vector<int> numbers{SIGCHLD};
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT, SIGWINCH}) {
    struct sigaction action {};
    sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN || number == SIGCONT) numbers.push_back(number);
  }
  return numbers;
}

constexpr milliseconds shutdown_timeout = 30s;  // from a signal that ends mnrun until it kills the processes

bool ends_program(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

// One attempt on this node: its processes, until the verdict.
class NodeAttempt {
 public:
  NodeAttempt(const Options& options, const Attempt& attempt, const multinode::ChildCommand& common, Agents& agents,
              const Guard& guard, OutputPump& pump, Signals& signals)
      : attempt_(attempt), agents_(agents), pump_(pump), signals_(signals), group_(options, attempt, common, guard) {}

  Verdict run() {
    try {
      group_.start(pump_);
    } catch (const multinode::StartError& e) {
      agents_.propose({e.status, self() + ": " + e.what()});
    } catch (const std::system_error& e) {
      agents_.propose({1, self() + ": " + e.what()});
    }
    for (;;) {
      reap_children();
      adopt_verdict();
      if (kill_in_ && kill_in_->passed()) {
        group_.signal(SIGKILL);
        kill_in_.reset();
      }
      // A grandchild that left the process group may keep a pipe open forever.
      if (close_in_ && close_in_->passed()) pump_.close_idle();
      // A signal to mnrun may have come after a failure whose verdict is another attempt.
      if (close_in_ && verdict_ && pump_.closed()) return verdict_->again && signalled_ ? *signalled_ : *verdict_;
      if (close_in_ && verdict_ && hurried_ && close_in_->passed()) _exit(*hurried_);  // the reader has stopped
      wait();
    }
  }

 private:
  std::string self() const { return agents_.this_agent().name(); }

  void wait() {
    entries_.clear();
    entries_.push_back({signals_.descriptor(), POLLIN, 0});
    if (!verdict_) entries_.push_back({agents_.verdict_fd(), POLLIN, 0});
    pump_.poll_entries(entries_);
    // kill_in_ until all processes have ended, close_in_ afterwards. Then only a slow reader delays the end.
    auto& next = close_in_ ? close_in_ : kill_in_;
    const bool timed = next && !(close_in_ && close_in_->passed());
    const int until_next = timed ? static_cast<int>(next->left().count()) : -1, until_line = pump_.timeout();
    poll(entries_.data(), entries_.size(),
         until_line < 0 || (timed && until_next < until_line) ? until_next : until_line);
    while (const auto signal = signals_.next()) handle_signal(*signal);
    pump_.serve();
  }

  void reap_children() {
    if (close_in_) return;
    for (const std::size_t i : group_.reap()) {
      const multinode::Ending& ending = *group_.child(i).ending();
      if (!ending.failed() || stopping_ || verdict_) continue;
      const Place& place = group_.place(i);
      const int status = ending.as_exit_status();
      // A bad command line, absent hardware, a program that cannot be executed: another attempt would fail, too.
      const bool again = status != multinode::exit_usage && status != multinode::exit_hardware_absent &&
                         status != 126 && status != 127 && attempt_.number < attempt_.master.max_restarts;
      const Verdict failure{status,
                            fmt::format("rank {} (node {}, host {}, pid {}) {}", place.rank, place.node,
                                        agents_.this_agent().host, group_.child(i).pid(), text_of(ending)) +
                                (ending.signal == SIGKILL ? memory_.reason(multinode::OomWatch::see_dmesg) : ""),
                            again};
      stop(failure.kill_delay);
      agents_.propose(failure);
    }
    if (!group_.ended()) return;
    // Also kill the children that the processes left behind in their groups.
    group_.signal(SIGKILL);
    kill_in_.reset();
    close_in_.emplace(500ms);
    if (!stopping_ && !agents_.verdict()) agents_.report_done();
  }

  void adopt_verdict() {
    if (verdict_) return;
    verdict_ = agents_.verdict();
    if (verdict_ && !close_in_) stop(verdict_->kill_delay);
  }

  void stop(milliseconds kill_delay) {
    if (std::exchange(stopping_, true)) return;
    group_.signal(SIGTERM);
    group_.signal(SIGCONT);  // a stopped process does not receive SIGTERM
    kill_in_.emplace(kill_delay);
  }

  void handle_signal(const signalfd_siginfo& info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) return;  // reap_children() comes next
    const bool from_terminal = info.ssi_code == SI_KERNEL;
    if (group_.interactive() && from_terminal) {  // the process has received it already, and decides
      if (number == SIGTSTP) raise(SIGSTOP);
      return;
    }
    if (!ends_program(number)) {
      group_.signal(number);
      if (number == SIGTSTP) raise(SIGSTOP);
      return;
    }
    if (close_in_) _exit(128 + number);  // mnrun only waits, for the other nodes or for a stopped reader
    if (signalled_) {
      group_.signal(SIGKILL);
      hurried_ = 128 + number;
      return;
    }
    signalled_ = {128 + number, fmt::format("{} received signal {} ({})", self(), number, signal_name(number)), false,
                  shutdown_timeout};
    group_.signal(number);
    group_.signal(SIGCONT);
    agents_.end_run(*signalled_);
    if (!std::exchange(stopping_, true)) kill_in_.emplace(shutdown_timeout);
  }

  const Attempt& attempt_;
  Agents& agents_;
  OutputPump& pump_;
  Signals& signals_;
  ProcessGroup group_;
  const multinode::OomWatch memory_;
  std::vector<pollfd> entries_;
  std::optional<Verdict> verdict_;
  std::optional<Verdict> signalled_;  // a signal ends mnrun
  bool stopping_ = false;
  std::optional<int> hurried_;                   // a second signal came: the exit status if the reader has stopped
  std::optional<multinode::Deadline> kill_in_;   // SIGKILL
  std::optional<multinode::Deadline> close_in_;  // set when all processes have ended
};

// Returns the program's file. Errors that are known before the start go into `this_agent`, so that the other nodes get
// them.
std::string prepare_start(Options& options, Agent& agent) {
  try {
    agent.processes = count_processes(options.processes);
    multinode::Environment environment = multinode::current_environment();
    environment.emplace("PATH", "/usr/local/bin:/usr/bin:/bin");
    std::string file = multinode::find_program(options.command[0], environment["PATH"]);
    if (options.tee && options.log_dir.empty()) {
      options.log_dir = std::filesystem::temp_directory_path() / "mnrun-XXXXXX";
      if (!mkdtemp(options.log_dir.data())) throw multinode::UsageError("--log-dir: cannot make " + options.log_dir);
    } else if (options.tee)
      try {
        multinode::make_folders(options.log_dir);
        if (const auto why = multinode::why_not_own(options.log_dir); !why.empty())
          throw multinode::UsageError("--log-dir " + options.log_dir + ": " + why);
      } catch (const std::system_error& e) {
        throw multinode::UsageError(std::string("--log-dir: ") + e.what());
      }
    return file;
  } catch (const multinode::UsageError& e) {
    agent.error_status = multinode::exit_usage, agent.error = e.what();
  } catch (const multinode::HardwareAbsent& e) {
    agent.error_status = multinode::exit_hardware_absent, agent.error = e.what();
  } catch (const multinode::StartError& e) {
    agent.error_status = e.status, agent.error = e.what();
    if (options.command[0].ends_with(".py"))
      agent.error += ". torchrun starts a script with Python, mnrun does not: mnrun python3 " + options.command[0];
  }
  return "";
}

// Waits until output is available, one of `entries` is ready, or `timeout` ms have passed. Then moves the output.
void move_output(OutputPump& pump, std::vector<pollfd> entries, int timeout) {
  pump.poll_entries(entries);
  poll(entries.data(), entries.size(), timeout);
  pump.serve();
}

// Waits until all output is written. That takes long only if the reader has stopped; a signal ends the wait.
void drain(OutputPump& pump, Signals& signals, int status) {
  while (!pump.drained()) {
    move_output(pump, {{signals.descriptor(), POLLIN, 0}}, -1);
    while (const auto signal = signals.next())
      if (ends_program(static_cast<int>(signal->ssi_signo))) _exit(status ? status : 128 + int(signal->ssi_signo));
  }
}

// mnrun's own lines appear before the next lines of the processes, unless the reader has stopped.
void drain_for_a_second(OutputPump& pump) {
  for (const auto end = Clock::now() + 1s; !pump.drained() && Clock::now() < end;) move_output(pump, {}, 100);
}

}  // namespace

int supervise(Options options) {
  Agent agent;
  agent.host = multinode::host_name();
  agent.pid = getpid();
  multinode::ChildCommand common;
  const bool default_log_dir = options.tee && options.log_dir.empty();
  common.file = prepare_start(options, agent);
  // Two pipes per process, and its connections to the store, can exceed the usual soft limit of 1024 descriptors.
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  common.open_files = descriptors;
  descriptors.rlim_cur = descriptors.rlim_max;
  setrlimit(RLIMIT_NOFILE, &descriptors);
  ::signal(SIGCHLD, SIG_DFL);
  ::signal(SIGPIPE, SIG_IGN);
  const Guard guard;
  Signals signals(handled_signals());
  common.mask = signals.before();
  OutputPump pump(1, 2);
  const auto end = [&](const Verdict& verdict) {
    if (verdict.status) pump.print(verdict.text);
    drain(pump, signals, verdict.status);
    const int error = pump.error();
    if (verdict.status || !error) return verdict.status;
    pump.print(std::string("some of the output could not be written: ") + std::strerror(error));
    return int{multinode::exit_wrong};
  };
  if (agent.error_status && options.nodes == 1) return end({agent.error_status, agent.error});

  signals.unblock();
  Agents agents(options, agent, [&](const std::string& line) { pump.print(line); });
  for (int number = 0;; ++number) {
    signals.unblock();
    Attempt attempt;
    try {
      attempt = agents.meet(number);
    } catch (const Ended& ended) {
      attempt.error_status = ended.verdict.status, attempt.error = ended.verdict.text;
    }
    signals.block();
    if (attempt.error_status) {
      agents.leave();
      return end({attempt.error_status, attempt.error});
    }
    if (number == 0 && default_log_dir) pump.print("log files are in " + options.log_dir + "/" + attempt.master.run_id);
    const Verdict verdict = NodeAttempt(options, attempt, common, agents, guard, pump, signals).run();
    if (!verdict.again) {
      agents.leave();
      return end(verdict);
    }
    pump.print(fmt::format("{}; attempt {} begins (--max-restarts {})", verdict.text, number + 1,
                           attempt.master.max_restarts));
    drain_for_a_second(pump);
  }
}

}  // namespace mnrun
