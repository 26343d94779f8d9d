#include <mnrun/process_group.hpp>

#include <multinode/base/files.hpp>
#include <multinode/process/process_tree.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <string.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <thread>
#include <utility>

namespace mnrun {

namespace {

// The process is ending: its connections are closed already, but waitpid() does not report it yet.
bool ending_now(const multinode::ChildProcess& child) {
  if (child.ending()) return false;
  constexpr unsigned exiting = 4;  // PF_EXITING
  return multinode::process_state(child.pid()).flags & exiting;
}

}  // namespace

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name ? std::string("SIG") + name : "SIGRTMIN+" + std::to_string(signal - SIGRTMIN);
}

std::string text_of(const multinode::Ending& ending) {
  return ending.signal ? fmt::format("was killed by signal {} ({})", ending.signal, signal_name(ending.signal))
                       : fmt::format("ended with exit status {}", ending.status);
}

std::string Agent::name() const { return fmt::format("node {} (host {}, pid {})", node, host, pid); }

std::vector<Attempt> attempt_of_each_node(std::span<const Agent> agents) {
  Attempt attempt;
  attempt.master = agents[0];
  int ranks = 0;
  for (const Agent& agent : agents) {
    attempt.first.world_size = ranks += agent.processes;
    if (agent.hosts_store) attempt.store_host = agent.name();
    if (agent.error_status && !attempt.error_status)
      attempt.error_status = agent.error_status, attempt.error = agent.name() + ": " + agent.error;
  }
  attempt.first.node_count = static_cast<int>(agents.size());

  std::vector<Attempt> result;
  ranks = 0;
  for (const Agent& agent : agents) {
    Place& first = attempt.first;
    first.rank = std::exchange(ranks, ranks + agent.processes);
    first.local_size = agent.processes;
    first.node = static_cast<int>(result.size());
    result.push_back(attempt);
  }
  return result;
}

std::vector<Place> places(const Place& first) {
  std::vector<Place> result(static_cast<std::size_t>(first.local_size), first);
  for (int i = 0; i < first.local_size; ++i) {
    Place& place = result[static_cast<std::size_t>(i)];
    place.rank += i;
    place.local_rank = i;
  }
  return result;
}

std::vector<std::string> environment_of(const Place& place, const Attempt& attempt, const Options& options,
                                        const multinode::Environment& inherited) {
  multinode::Environment variables = multinode::environment_of_process(inherited, place.local_size > 1);
  const auto text = [](int value) { return std::to_string(value); };
  const std::pair<const char*, std::string> launcher_variables[] = {
      {"RANK", text(place.rank)},
      {"WORLD_SIZE", text(place.world_size)},
      {"LOCAL_RANK", text(place.local_rank)},
      {"LOCAL_WORLD_SIZE", text(place.local_size)},
      {"GROUP_RANK", text(place.node)},
      {"GROUP_WORLD_SIZE", text(place.node_count)},
      {"ROLE_NAME", options.role},  // the run has one role
      {"ROLE_RANK", text(place.rank)},
      {"ROLE_WORLD_SIZE", text(place.world_size)},
      {"MASTER_ADDR", attempt.master.master_address},
      {"MASTER_PORT", text(attempt.master.master_port)},
      {"MNRUN_STORE", attempt.store},
      {"MNRUN_RUN_ID", attempt.master.run_id},
      {"MNRUN_RESTART_COUNT", text(attempt.number)},
      {"TORCHELASTIC_RUN_ID", attempt.master.run_id},  // torch looks at them
      {"TORCHELASTIC_RESTART_COUNT", text(attempt.number)},
  };
  for (const auto& [name, value] : launcher_variables) variables[name] = value;

  std::vector<std::string> result;
  for (const auto& [name, value] : variables) result.push_back(name + "=" + value);
  return result;
}

ProcessGroup::ProcessGroup(const Options& options, const Attempt& attempt, multinode::ChildCommand common,
                           const Guard& guard)
    : options_(options),
      attempt_(attempt),
      places_(places(attempt.first)),
      common_(std::move(common)),
      guard_(guard),
      interactive_(places_.size() == 1 && isatty(0)) {}

Descriptor ProcessGroup::open_log(const Place& place, const char* name) const {
  auto folder = std::filesystem::path(options_.log_dir) / attempt_.master.run_id;
  const auto run = folder;
  if (place.node_count > 1) folder /= fmt::format("node_{}", place.node);  // the nodes may share a file system
  folder /= fmt::format("attempt_{}/{}", attempt_.number, place.local_rank);
  multinode::make_folders(folder);
  if (const auto why = multinode::why_not_own(run); !why.empty())
    throw std::system_error(EPERM, std::generic_category(), "--log-dir: " + run.string() + ": " + why);
  return multinode::create_new(folder / name);
}

void ProcessGroup::start(OutputPump& pump) {
  const multinode::Environment inherited = multinode::current_environment();
  // Reading from a terminal would stop a process in another process group. A pipe or a file goes to rank 0, as with
  // mpirun.
  const Descriptor nothing(multinode::check_errno(open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null"));
  for (const Place& place : places_) {
    const bool has_input = interactive_ || (place.rank == 0 && !isatty(0));
    multinode::ChildCommand command = common_;
    command.arguments = options_.command;
    command.environment = environment_of(place, attempt_, options_, inherited);
    command.descriptors = {has_input ? 0 : nothing.get(), 1, 2};
    command.own_group = !interactive_;
    command.when_parent_dies = SIGKILL;
    const std::string prefix = place.world_size == 1 || options_.no_prefix ? "" : fmt::format("[rank {}] ", place.rank);
    Descriptor kept[3];  // keeps them open until the process has its own copies
    for (const int stream : {1, 2}) {
      Descriptor log;
      if (options_.tee & stream) log = open_log(place, stream == 1 ? "stdout.log" : "stderr.log");
      if (!log && place.world_size == 1) continue;  // it writes without a pipe in between
      kept[stream] = pump.add(stream, prefix, std::move(log));
      command.descriptors[static_cast<std::size_t>(stream)] = kept[stream].get();
    }
    children_.emplace_back(command);
    if (command.own_group) guard_.watch(children_.back().pid());
  }
}

std::vector<std::size_t> ProcessGroup::reap() {
  using namespace std::chrono_literals;
  std::vector<std::size_t> ended;
  const auto reap_all = [&] {
    for (std::size_t i = 0; i < children_.size(); ++i)
      if (children_[i].poll()) ended.push_back(i);
  };
  const auto one_ends = [this] { return std::ranges::any_of(children_, ending_now); };
  const auto one_failed = [&] {
    return std::ranges::any_of(ended, [this](std::size_t i) { return children_[i].ending()->failed(); });
  };
  reap_all();
  // A process may have failed because another one is ending: wait for that one, to blame the right process.
  const auto patience = std::chrono::steady_clock::now() + 1s;
  while (one_failed() && one_ends() && std::chrono::steady_clock::now() < patience) {
    std::this_thread::sleep_for(1ms);
    reap_all();
  }
  std::stable_partition(ended.begin(), ended.end(),
                        [this](std::size_t i) { return children_[i].ending()->signal != 0; });
  return ended;
}

bool ProcessGroup::ended() const {
  return std::all_of(children_.begin(), children_.end(), [](const auto& c) { return c.ending().has_value(); });
}

void ProcessGroup::signal(int number) const {
  for (const auto& child : children_) child.signal(number);
}

}  // namespace mnrun
