#include <mnrun/supervisor.hpp>

#include <multinode/base/check.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/net/address.hpp>

#include <fmt/core.h>

#include <sys/resource.h>

#include <algorithm>
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

bool ends_program(int signal) { return signal == SIGINT || signal == SIGTERM || signal == SIGHUP || signal == SIGQUIT; }

// One start of the processes of this node, until the verdict.
class Run {
 public:
  Run(const Options& options, const Round& round, const multinode::ChildCommand& common, Agents& agents,
      const Guard& guard, OutputPump& pump, Signals& signals)
      : options_(options),
        round_(round),
        agents_(agents),
        pump_(pump),
        signals_(signals),
        group_(options, round, common, guard) {}

  Verdict to_the_end() {
    try {
      group_.start(pump_);
    } catch (const multinode::StartError& e) {
      agents_.propose({e.status, self() + ": " + e.what()});
    } catch (const std::system_error& e) {
      agents_.propose({1, self() + ": " + e.what()});
    }
    for (;;) {
      look_at_children();
      hear_verdict();
      if (kill_in_ && kill_in_->passed()) {
        group_.signal(SIGKILL);
        kill_in_.reset();
      }
      // A grandchild that left the process group may keep a pipe open forever.
      if (close_in_ && close_in_->passed()) pump_.close_idle();
      // A signal to mnrun may have come after a failure whose verdict is a restart.
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
    poll(entries_.data(), entries_.size(), timed ? static_cast<int>(next->left().count()) : -1);
    while (const auto signal = signals_.next()) handle(*signal);
    pump_.serve();
  }

  void look_at_children() {
    if (close_in_) return;
    for (const std::size_t i : group_.look()) {
      const multinode::Ending& ending = *group_.child(i).ending();
      if (!ending.failed() || stopping_ || verdict_) continue;
      const Place& place = group_.place(i);
      const int status = ending.as_exit_status();
      // A bad command line, absent hardware, a program that cannot be executed: a restart would fail in the same way.
      const bool again = status != multinode::exit_usage && status != multinode::exit_hardware_absent &&
                         status != 126 && status != 127 && round_.restart < round_.master.max_restarts;
      const Verdict failure{status,
                            fmt::format("rank {} (node {}, host {}, pid {}) {}", place.rank, place.node,
                                        agents_.this_agent().host, group_.child(i).pid(), text_of(ending)),
                            again};
      if (options_.go_on) {
        agents_.note_first(failure);
      } else {
        stop(failure.kill_delay);
        agents_.propose(failure);
      }
    }
    if (!group_.ended()) return;
    // Also kill the children that the processes left behind in their groups.
    group_.signal(SIGKILL);
    kill_in_.reset();
    close_in_.emplace(500ms);
    if (!stopping_ && !agents_.verdict()) agents_.done();
  }

  void hear_verdict() {
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

  void handle(const signalfd_siginfo& info) {
    const int number = static_cast<int>(info.ssi_signo);
    if (number == SIGCHLD) return;  // look_at_children() comes next
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
                  options_.shutdown_timeout};
    group_.signal(number);
    group_.signal(SIGCONT);
    agents_.end(*signalled_);
    if (!std::exchange(stopping_, true)) kill_in_.emplace(options_.shutdown_timeout);
  }

  const Options& options_;
  const Round& round_;
  Agents& agents_;
  OutputPump& pump_;
  Signals& signals_;
  ProcessGroup group_;
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
std::string prepare(Options& options, Agent& agent) {
  try {
    agent.processes = count_processes(options.processes);
    const auto folder = [](const std::string& path, std::string_view option, auto&& use) {
      std::error_code error;
      use(error);
      if (error) throw multinode::UsageError(std::string(option) + " " + path + ": " + error.message());
    };
    if (!options.log_dir.empty()) {
      options.log_dir = std::filesystem::absolute(options.log_dir).string();
      folder(options.log_dir, "--log-dir", [&](std::error_code& error) {
        std::filesystem::create_directories(options.log_dir, error);
        if (!error && access(options.log_dir.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
      });
    }
    if (!options.workdir.empty())
      folder(options.workdir, "--workdir",
             [&](std::error_code& e) { std::filesystem::current_path(options.workdir, e); });
    multinode::Environment environment = multinode::current_environment();
    environment.emplace("PATH", "/usr/local/bin:/usr/bin:/bin");
    const auto path = options.environment.find("PATH");
    std::string file = multinode::find_program(options.command[0],
                                               path == options.environment.end() ? environment["PATH"] : path->second);
    if ((options.redirects || options.tee) && options.log_dir.empty()) {
      options.default_log_dir = true;
      options.log_dir = std::filesystem::absolute(std::filesystem::temp_directory_path() / "mnrun-XXXXXX").string();
      folder(options.log_dir, "--log-dir", [&](std::error_code& error) {
        if (!mkdtemp(options.log_dir.data())) error = {errno, std::generic_category()};
      });
    }
    return file;
  } catch (const multinode::UsageError& e) {
    agent.error_status = multinode::exit_usage, agent.error = e.what();
  } catch (const multinode::HardwareAbsent& e) {
    agent.error_status = multinode::exit_hardware_absent, agent.error = e.what();
  } catch (const multinode::StartError& e) {
    agent.error_status = e.status, agent.error = e.what();
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
void write_first(OutputPump& pump) {
  for (const auto end = Clock::now() + 1s; !pump.drained() && Clock::now() < end;) move_output(pump, {}, 100);
}

}  // namespace

int supervise(Options options) {
  Agent agent;
  agent.host = multinode::host_name();
  agent.pid = getpid();
  multinode::ChildCommand common;
  common.file = prepare(options, agent);
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
    if (verdict.status) pump.say(verdict.text);
    drain(pump, signals, verdict.status);
    const int error = pump.error();
    if (verdict.status || !error) return verdict.status;
    pump.say(std::string("some of the output could not be written: ") + std::strerror(error));
    return int{multinode::exit_wrong};
  };
  if (agent.error_status && options.nodes == 1) return end({agent.error_status, agent.error});

  signals.unblock();
  Agents agents(options, agent, [&](const std::string& line) { pump.say(line); });
  for (int restart = 0;; ++restart) {
    signals.unblock();
    Round round;
    try {
      round = agents.meet(restart);
    } catch (const Ended& ended) {
      round.error_status = ended.verdict.status, round.error = ended.verdict.text;
    }
    signals.block();
    if (round.error_status) {
      agents.leave();
      return end({round.error_status, round.error});
    }
    if (restart == 0 && options.default_log_dir)
      pump.say("log files are in " + options.log_dir + "/" + round.master.run_id);
    const Verdict verdict = Run(options, round, common, agents, guard, pump, signals).to_the_end();
    if (!verdict.again) {
      agents.leave();
      return end(verdict);
    }
    pump.say(fmt::format("{}; start {} of {} more", verdict.text, restart + 1, round.master.max_restarts));
    write_first(pump);
  }
}

}  // namespace mnrun
