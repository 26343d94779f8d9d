// who_waits: starts a program with a library that records its calls of MPI, NCCL and CUDA, and explains a hang: which
// rank waits in which call, and for whom. Exit status: the program's; 1 if --end ended it, 2 bad command line.
//
// Two processes per rank: this one is the program's parent, and the other one explains. Where that one fails, or loses
// those of the other ranks, or does not find them, the program continues.
#include "attach.hpp"
#include "observer.hpp"
#include "packing.hpp"
#include "stacks.hpp"
#include "timeline.hpp"
#include "verdict.hpp"

#include <multinode/base/deadline.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/process/process_tree.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/report.hpp>
#include <multinode/world/world.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

using namespace std::chrono_literals;
using multinode::UsageError;
using namespace who_waits;
using Clock = Observer::Clock;

namespace {

struct Options {
  double after = 60;
  bool time = false;
  bool end = false;
  std::string json, rendezvous, timeline, attach;
  std::optional<Moment> from, to;
  std::vector<std::string> command;
  bool takes_times() const { return time || !timeline.empty(); }
};

Moment moment_of(std::string text) {
  const bool percent = text.ends_with('%');
  const auto value = multinode::number_of<double>(text.substr(0, text.size() - percent));
  if (!value) throw UsageError(fmt::format("--from and --to must be seconds or a percentage, not '{}'", text));
  return {*value, percent};
}

bool parse(int argc, char** argv, Options& options, bool prints) {
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));
  namespace po = boost::program_options;
  po::options_description known(
      "who_waits [options] -- PROGRAM [arguments]: runs the program, and explains it when it hangs.\n"
      "Every rank runs it: mpirun -n 4 who_waits -- ./program");
  const auto moment = [](std::optional<Moment>& to) {
    return po::value<std::string>()->notifier([&to](const std::string& text) { to = moment_of(text); });
  };
  auto option = known.add_options();
  option("after", po::value(&options.after)->default_value(options.after),
         "seconds without progress before the explanation, of any rank or of ranks that are proved to be stuck; a "
         "signal SIGUSR1 asks for it at once");
  option("end", po::bool_switch(&options.end), "ends the program if it is proved that it cannot continue");
  option("attach", po::value(&options.attach),
         "explain a job that hangs already: the name or path of its program, the pid of its launcher, or job:ID of "
         "Slurm or PBS. On several nodes: mpirun -N 1 who_waits --attach NAME");
  option("timeline", po::value(&options.timeline),
         "FILE.svg or FILE.json: a picture of what the ranks did, made at each explanation and at the end");
  option("from", moment(options.from),
         "of the timeline: seconds since MPI_Init; negative: before the end; or a percentage of the time, as 75%");
  option("to", moment(options.to), "likewise");
  option("time", po::bool_switch(&options.time),
         "at the end, prints where the time in calls went: waiting for late ranks, or for the data");
  option("json", po::value(&options.json), "file to which each explanation is added as a line of JSON");
  option("rendezvous", po::value(&options.rendezvous),
         "where the ranks meet: tcp:HOST:PORT or file:PATH (default: a file in /tmp if they are on one node, else in "
         "the home folder, or in the current one)");
  try {
    if (!multinode::parse_command_line(static_cast<int>(dashes - argv), argv, known, prints)) return false;
  } catch (const UsageError& e) {
    if (dashes != end) throw;
    throw UsageError(fmt::format("{}; the program goes after --: who_waits [options] -- ./program", e.what()));
  }
  if (!(options.after >= 0.5 && options.after <= 1e6))
    throw UsageError(fmt::format("--after must be from 0.5 to 1000000, not {}", options.after));
  const std::filesystem::path timeline = options.timeline;
  if (!timeline.empty() && timeline.extension() != ".svg" && timeline.extension() != ".json")
    throw UsageError(fmt::format("--timeline must be FILE.svg or FILE.json, not {}", options.timeline));
  if (timeline.empty() && (options.from || options.to)) throw UsageError("--from and --to need --timeline FILE.svg");
  if (!options.attach.empty()) {
    if (end != dashes) throw UsageError("--attach explains programs that run already: it starts none after --");
    return true;
  }
  if (end - dashes < 2) throw UsageError("a program is needed, after --: who_waits -- ./program");
  options.command.assign(dashes + 1, end);
  const std::string name = std::filesystem::path(options.command[0]).filename();
  for (const char* const launcher :
       {"mpirun", "mpiexec", "orterun", "prterun", "prun", "srun", "aprun", "jsrun", "torchrun"})
    if (name == launcher || name.starts_with(launcher + std::string(".")))
      throw UsageError(
          fmt::format("each rank runs who_waits, so it goes behind {0}: {0} ... who_waits -- ./program", name));
  if (name == "who_waits" || std::getenv(record_variable))
    throw UsageError("who_waits runs inside of who_waits: leave one of them out");
  return true;
}

// Where a launcher has a store, the run of the who_waits processes is another one than the program's.
multinode::Launch own_launch(const multinode::Environment& variables) {
  multinode::Launch launch = multinode::read_launch(variables);
  launch.run_id += ".who_waits";
  return launch;
}

// Waits until a process of this job has loaded MPI without the library of who_waits, as a part of an MPMD program can:
// its rank never comes. Then it ends this process. It first looks after a second, because ranks usually meet sooner.
void expect_all(const std::stop_token& stop, const multinode::Launch& launch) {
  auto next = Clock::now() + 1s + 200ms * std::min(launch.local_rank.value, 20);  // the ranks of a node take turns
  while (!stop.stop_requested()) {
    std::this_thread::sleep_for(100ms);
    if (Clock::now() < next) continue;
    next += 5s;
    for (const std::string& name : multinode::names_in("/proc")) try {
        const auto pid = multinode::parse_decimal<pid_t>(name);
        struct stat status {};  // root sees other users' processes
        const bool own = ::stat(("/proc/" + name).c_str(), &status) == 0 && status.st_uid == ::geteuid();
        const std::string maps = pid && own ? multinode::read_text("/proc/" + name + "/maps").value_or("") : "";
        if (maps.find("/libmpi") == maps.npos || maps.find("/libwho_waits") != maps.npos) continue;
        if (maps.find("/who_waits\n") != maps.npos) continue;  // with a tool that was loaded into it, too
        const multinode::Launch other = own_launch(multinode::environment_of(*pid));
        if (other.world_size.value != launch.world_size.value || attempt_name(other) != attempt_name(launch)) continue;
        multinode::say("who_waits", fmt::format("rank {} (pid {}) was started without it: every part of the program "
                                                "needs who_waits --; the program continues without it",
                                                other.rank.value, *pid));
        ::_exit(multinode::exit_usage);
      } catch (const UsageError&) {
      }
  }
}

// The library to load into the program, for the MPI that it is linked with. A script may start any program: it gets
// that for the launcher. Throws UsageError.
std::string library_for(const std::string& file, const std::string& launcher) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string libraries = output_of({"ldd", file});                 // "": a script, or static
  const bool pmi = std::getenv("PMI_RANK") && !std::getenv("PMIX_RANK");  // as by srun --mpi=pmi2, which MPICH needs
  std::string name = launcher == "Open MPI" ? "open-mpi" : launcher == "MPICH" || pmi ? "mpich" : WHO_WAITS_LIBRARY;
  if (libraries.find("libmpi.so.40") != std::string::npos) name = "open-mpi";
  if (libraries.find("libmpi.so.12") != std::string::npos || libraries.find("libmpich.so") != std::string::npos)
    name = "mpich";
  const std::string path = (folder / ("libwho_waits_" + name + ".so")).string();
  if (!std::filesystem::exists(path))
    throw UsageError(fmt::format("{} uses {}, and {} is not there: build it with that MPI", file, name, path));
  return path;
}

std::vector<std::string> environment_of_program(const Observer& observer, const std::string& library, bool nvtx) {
  multinode::Environment variables = multinode::current_environment();
  variables[record_variable] = observer.path();
  std::string& preload = variables["LD_PRELOAD"];
  preload += (preload.empty() ? "" : ":") + library;  // the last: the calls of other tools go through it
  if (nvtx) variables.try_emplace("NVTX_INJECTION64_PATH", library);  // unless another tool wants it
  std::vector<std::string> list;
  for (const auto& [name, value] : variables) list.push_back(name + "=" + value);
  return list;
}

// Where the ranks meet. The master's address is the program's, and so is MPI.
std::string rendezvous_of(const Options& options, const multinode::Launch& launch) {
  if (!options.rendezvous.empty() || launch.world_size.value == 1) return options.rendezvous;
  const std::string& master = launch.master_address.value;
  const bool one_node = launch.node_count ? launch.node_count->value == 1
                        : launch.local_size
                            ? launch.local_size->value == launch.world_size.value
                            : !launch.under_mpi && (master == "localhost" || multinode::is_loopback(master));
  if (!one_node && (launch.launcher_store || launch.agent_store)) return "";  // a launcher's store, which all reach
  const char* const home = std::getenv("HOME");
  const std::vector<std::string> shared = {one_node || !home ? "" : home, one_node ? "" : "."};
  const auto folder = std::ranges::find_if(shared, [](const auto& one) { return ::access(one.c_str(), W_OK) == 0; });
  std::string job = fmt::format("{}-{}", ::geteuid(), multinode::attempt_name(launch));
  if (!launch.under_mpi) job += fmt::format("-{}-{}", launch.master_address.value, launch.master_port.value);
  std::ranges::replace(job, '/', '.');
  return fmt::format("file:{}/.who_waits-{}", folder == shared.end() ? "/tmp" : *folder, job);
}

// Collective: how this rank's clock differs from rank 0's. A message cannot arrive before it was sent, so each question
// is an upper bound of the offset, and each answer a lower one. Rank 0 holds the answer back for as long as the
// question took, because this rank can only wait for it then.
ClockReading read_clock(multinode::World& world) {
  constexpr int questions = 10;
  const auto now = [] { return Clock::now().time_since_epoch().count(); };
  const auto key = [](int rank, int i, const char* what) { return fmt::format("clock {} {} {}", rank, i, what); };
  multinode::TcpStore& store = world.store();
  const auto nodes = world.gather_on_rank_0("the nodes", std::to_string(world.node_rank()));
  for (int rank = 1; rank < static_cast<int>(nodes.size()); ++rank)
    for (int i = 0; i < questions && nodes[static_cast<std::size_t>(rank)] != nodes[0]; ++i) {
      const std::chrono::nanoseconds took(std::stoll(store.get(key(rank, i, "asked"), world.timeout())));
      const std::int64_t came = now();
      std::this_thread::sleep_for(std::min<std::chrono::nanoseconds>(took, 1s));
      store.set_for_readers(key(rank, i, "answered"), fmt::format("{} {}", came, now()), 1);
    }
  std::int64_t low = INT64_MIN / 2, high = INT64_MAX / 2, took = 0;
  for (int i = 0; i < questions && world.node_rank() != 0; ++i) {
    const std::int64_t asked = now();
    store.set_for_readers(key(world.rank(), i, "asked"), std::to_string(took), 1);
    took = now() - asked;
    std::istringstream answer(store.get(key(world.rank(), i, "answered"), world.timeout()));
    const std::int64_t answered = now();
    std::int64_t came = 0, sent = 0;
    answer >> came >> sent;
    high = std::min(high, came - asked);
    low = std::max(low, sent - answered);
  }
  world.barrier("the clocks");
  if (world.node_rank() == 0) return {.clock = now()};
  return {now(), low + (high - low) / 2, (high - low + 1) / 2};
}

// "solver.cpp:57" by addr2line, which needs the program's debug information; else "solver+0x1234".
std::string place_name(const std::string& object, std::uint64_t site) {
  const std::string line = output_of({"addr2line", "-s", "-e", object, fmt::format("{:#x}", site)});
  if (!line.empty() && line[0] != '?' && line.find(":?") == line.npos) return line.substr(0, line.find_first_of(" \n"));
  return fmt::format("{}+{:#x}", std::filesystem::path(object).filename().string(), site);
}

// The place of a call in a process, behind which is the address `site`.
std::string place_of(pid_t pid, std::uint64_t site) {
  std::istringstream maps(multinode::read_text(fmt::format("/proc/{}/maps", pid)).value_or(""));
  std::string file;
  std::uint64_t base = 0;
  for (std::string line; site && std::getline(maps, line);) {
    std::uint64_t start = 0, end = 0;
    const std::size_t path = line.find('/');
    if (path == line.npos || std::sscanf(line.c_str(), "%lx-%lx", &start, &end) != 2) continue;
    if (line.substr(path) != file) file = line.substr(path), base = start;
    if (site <= start || site > end) continue;
    try {
      const auto any = std::numeric_limits<std::uint64_t>::max();
      const std::string head = multinode::ForeignFile(file, any, multinode::Links::followed).first(17);
      return place_name(file, site - 1 - (head.size() == 17 && head[16] == 2 ? 0 : base));  // 2: addresses are fixed
    } catch (const UsageError&) {  // a pipe, perhaps, for which addr2line would wait
      return fmt::format("{}+{:#x}", std::filesystem::path(file).filename().string(), site - 1 - base);
    }
  }
  return "";
}

// What a rank does, with fields.
nlohmann::json fields_of(const RankState& rank) {
  nlohmann::json one = {{"rank", rank.rank}, {"host", rank.host}, {"pid", rank.pid}, {"seconds", rank.quiet}};
  if (rank.ended) one["exit_status"] = *rank.ended;
  if (!rank.stack.empty()) one["stack"] = rank.stack;
  if (rank.polled) one["tests_for"] = name_of(rank.polled->kind);
  for (const Wait& wait : rank.waits) {
    nlohmann::json call = {{"call", name_of(wait.call.kind)}, {"seconds", wait.seconds}};
    const Call& of = wait.requests.size() == 1 ? wait.requests[0] : wait.call;
    if (&of != &wait.call) call["request"] = name_of(of.kind);
    const int peer = role_of(of.kind) == Role::receive ? of.from() : of.peer;
    if (peer >= any) call["peer"] = peer;
    if (peer >= any && role_of(of.kind) != Role::other) call["tag"] = of.tag;
    if (role_of(of.kind) == Role::both) call["receive_peer"] = of.receive_peer, call["receive_tag"] = of.receive_tag;
    if (of.bytes) call["bytes"] = of.bytes;
    if (of.sequence && role_of(of.kind) == Role::collective)
      call["number"] = of.sequence, call["communicator"] = of.communicator;
    if (!wait.place.empty()) call["place"] = wait.place;
    one["calls"].push_back(call);
  }
  if (one.contains("calls"))  // the first thread's, beside those of all
    for (const auto& [name, value] : one["calls"][0].items()) one[name] = value;
  return one;
}

// What the program's parent tells the process that explains, and that it.
struct Message {
  enum What : std::int32_t { met, end, ends_soon, pid, ended, asked, told_to_end } what;
  std::int32_t value = 0;
};
void tell(int socket, Message message) { std::ignore = ::send(socket, &message, sizeof message, MSG_NOSIGNAL); }
std::optional<Message> hear(int socket) {  // none: the other one is gone
  Message message{};
  const ssize_t size = TEMP_FAILURE_RETRY(::recv(socket, &message, sizeof message, 0));
  return size == sizeof message ? std::optional(message) : std::nullopt;
}

// Every rank's value, on rank 0.
template <class T>
std::vector<T> gather(multinode::World& world, const char* name, const T& value) {
  std::vector<T> all;
  for (std::string& text : world.gather_on_rank_0(name, packed(value))) all.push_back(unpacked<T>(std::move(text)));
  return all;
}

// A rank that ends between MPI_Init and MPI_Finalize has failed, also with status 0: launchers end the others then.
bool has_failed(const RankState& rank) {
  return rank.ended && (*rank.ended != 0 || (rank.world_size > 0 && !rank.finalized));
}

// The looks at all ranks: rank 0 decides when, and explains what it sees.
class Watch {
 public:
  Watch(multinode::World& world, const Options& options, Observer& observer, int socket)
      : world_(world),
        options_(options),
        observer_(observer),
        socket_(socket),
        json_(world.rank() == 0 ? options.json : "", true) {}

  bool ends_program() const { return ends_program_; }
  // `clock`: at the start. Returns whether all ranks leave together.
  bool run(const ClockReading& clock) {
    clock_ = clock;
    const std::chrono::milliseconds often(std::max(20, world_.size() / 5));  // at most 5,000 turns per second
    // The others end, too, and the launcher waits for this process.
    const auto soon = [&] { return ended_at_ && Clock::now() < *ended_at_ + 2s; };
    for (auto next = Clock::now();;) {
      for (pollfd waits{socket_, POLLIN, 0}; ::poll(&waits, 1, soon() ? 20 : 200) > 0;) {
        const auto message = hear(socket_);
        if (!message || message->what == Message::told_to_end) return false;  // nothing to explain
        if (message->what == Message::asked) number("asked", 1);
        if (message->what == Message::pid) pid_ = message->value;
        if (message->what == Message::ended) next = Clock::now(), ended_at_ = next, ended_ = message->value;
      }
      observer_.look(Clock::now(), is_stopped());
      if (Clock::now() < next) continue;
      next = Clock::now() + std::max(often, soon() ? 20ms : ended_ ? 200ms : 1000ms);
      turn();
      if (ends_it_ >= 0) {
        ends_program_ = ends_it_ == world_.rank() || world_.launch().launcher != "Open MPI";
        tell(socket_, {Message::ends_soon});
        world_.barrier("the end of the program");  // all have been told, before the launcher ends them
        return true;
      }
      if (explained_failure_) return true;  // their launcher ends the others, or lets them go on
      if (number("over")) {
        if (options_.takes_times()) show_times(*ended_at_, true);
        world_.barrier("the end");
        return true;
      }
    }
  }

 private:
  Clock::time_point after() const {
    return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(options_.after));
  }
  std::int64_t number(const char* key, std::int64_t add = 0) { return world_.store().add(key, add); }

  // A signal that cannot be caught has stopped the program's parent: it stops the program, too. That passes SIGCONT on.
  bool is_stopped() const {
    const auto stopped = [] { return multinode::process_state(::getppid()).state == 'T'; };
    if (pid_ == 0 || !stopped()) return false;
    const pid_t family = ::getpgid(pid_) == pid_ ? -pid_ : pid_;
    ::kill(family, SIGSTOP);
    if (!stopped()) ::kill(family, SIGCONT);  // it went on meanwhile
    return true;
  }

  bool failed() const { return ended_ && (*ended_ != 0 || observer_.unfinished()); }

  // What each rank does once per second. Looks and the end are collective: rank 0 alone starts them, one after the
  // other.
  void turn() {
    const bool ended = ended_.has_value();
    const bool quiet = ended || observer_.quiet(Clock::now()) >= options_.after;
    // What counts is that a rank has moved since the last look, not that rank 0 saw it move: between two of its turns,
    // all may have moved and become quiet again.
    if (!counted_move_ && ((ended && !counted_end_) || observer_.steps() != steps_)) {
      counted_move_ = true;
      number("moves", 1);
    }
    if (ended && !counted_end_) {  // before it counts as quiet: rank 0 may look in between
      counted_end_ = true;
      if (failed()) number("asked", 1);
      number("ended", 1);
    }
    if (quiet != std::exchange(quiet_, quiet)) number("quiet", quiet ? 1 : -1);
    const bool waits = quiet || observer_.main_waits(Clock::now()) >= options_.after;
    if (waits != std::exchange(waits_, waits)) number("waiting", waits ? 1 : -1);
    if (world_.rank() == 0) {
      const bool all_ended = number("ended") == world_.size();  // before it sees who asked: a rank that failed has
      all_are_quiet_ = !all_ended && number("quiet") == world_.size() && number("moves") > explained_moves_;
      // Some are quiet, or their main threads: a look at them, which stays silent unless it proves that they are stuck.
      if (number("waiting") == 0)  // usually all become quiet soon, and are explained at once
        next_silent_look_ = after();
      some_are_quiet_ = !all_ended && number("waiting") > 0 && Clock::now() >= next_silent_look_;
      if (all_are_quiet_ || number("asked") > answered_ || some_are_quiet_ || proved_)
        number("looks", 1);
      else if (all_ended)
        number("over", 1);
    }
    if (number("looks") > looks_) look();
  }

  // How long each rank is quiet: whether there is something to explain.
  void look() {
    ++looks_;
    const std::int64_t moves = number("moves");
    observer_.look(Clock::now());
    steps_ = observer_.steps();
    counted_move_ = false;
    struct Brief {
      double quiet;
      std::optional<int> ended;
      bool failed;
    };
    const auto ranks = gather(world_, "how long it is quiet", Brief{observer_.quiet(Clock::now()), ended_, failed()});
    const bool one_failed = std::ranges::any_of(ranks, &Brief::failed);
    const bool all_right = std::ranges::all_of(ranks, [](const Brief& one) { return one.ended == 0; });
    // If a rank has moved since it counted as quiet, there is nothing to explain yet. Nobody asks during a look.
    const bool one_moves =
        std::ranges::any_of(ranks, [&](const Brief& one) { return !one.ended && one.quiet < options_.after; });
    const bool explains = world_.rank() == 0 && !all_right && !(all_are_quiet_ && one_moves && !one_failed);
    const bool silent = some_are_quiet_ && !all_are_quiet_ && !proved_ && !one_failed && number("asked") <= answered_;
    if (some_are_quiet_) next_silent_look_ = after();
    if (world_.rank() == 0) answered_ = number("asked");
    if (explains && !silent) explained_moves_ = moves;
    const std::string how = world_.broadcast("whether to explain", !explains ? "no" : silent ? "silently" : "yes");
    if (how != "no") explain_all(how == "silently");
  }

  // Collective. Rank 0 explains what all ranks do. `silent`: it only finds out whether some of them are stuck.
  void explain_all(bool silent) {
    observer_.look(Clock::now());  // the gathering in look() may have taken a second
    RankState state = observer_.state(world_.rank(), Clock::now());
    state.ended = ended_;
    if (!state.pid) state.pid = pid_;
    ProcessStacks stacks;
    if (!state.ended) {
      state.process = state_of_threads(state.pid);
      const bool outside = state.waits.empty() && !state.polled;
      if (!silent) {  // a silent look stops no process for its stack, and starts no addr2line
        if (outside || state.other_thread || program_of(state.pid).starts_with("python")) stacks = stacks_of(state.pid);
        std::map<std::uint64_t, std::string> known;
        const auto find = [&](auto& one) {
          if (known.try_emplace(one.site).second) known[one.site] = place_of(state.pid, one.site);
          one.place = known[one.site];
        };
        std::ranges::for_each(state.waits, find);
        std::ranges::for_each(state.communicators, find);
      }
      state.stack = state.waits.empty() ? stack_line(stacks) : outside_line(stacks);
    }
    stacks.rank = state.rank;
    const auto ranks = gather(world_, "the state of the program", state);
    Verdict verdict = world_.rank() == 0 ? explain(ranks) : Verdict();
    if (world_.rank() == 0 && !verdict.certain)
      if (const Verdict main = explain_main_threads(ranks, options_.after); main.main_threads) verdict = main;
    // The ranks were not seen at the same time. What they did then holds now if none of them has moved since.
    const auto who_has_moved = [&] {
      observer_.look(Clock::now());
      return gather(world_, "who has moved", observer_.steps() != steps_);
    };
    if (silent) {
      const auto moved = who_has_moved();
      const auto waits_too_short = [&](const RankState& one) {
        return one.quiet < options_.after && std::ranges::count(verdict.culprits, one.rank);
      };
      proved_ = world_.rank() == 0 && verdict.culprits != explained_ &&
                (verdict.main_threads || (verdict.certain && !has_moved(ranks, verdict, moved) &&
                                          std::ranges::none_of(ranks, waits_too_short)));
      return;
    }
    auto all_stacks = gather(world_, "the stacks", stacks);
    if (world_.broadcast("stacks", verdict.cause == "started" ? "wanted" : "") == "wanted") {  // what do they do there?
      if (!ended_ && stacks.threads.empty()) stacks = stacks_of(state.pid), stacks.rank = state.rank;
      all_stacks = gather(world_, "the stacks of all", stacks);
    }
    std::erase_if(all_stacks, [](const ProcessStacks& one) { return one.threads.empty(); });
    const auto moved = who_has_moved();
    if (world_.rank() == 0) say(ranks, verdict, all_stacks, moved);
    const std::string found = world_.broadcast("the explanation", fmt::format("{} {}", ends_it_, explained_failure_));
    ends_it_ = std::stoi(found);
    explained_failure_ = found.ends_with("true");
    if (!options_.timeline.empty()) show_times(ended_at_.value_or(Clock::now()), false, verdict.waits_for);
  }

  // Whether a rank has moved since on which the verdict depends.
  static bool has_moved(const std::vector<RankState>& ranks, const Verdict& verdict, const std::vector<bool>& moved) {
    for (std::size_t i = 0; i < ranks.size(); ++i)
      if (moved[i] && (verdict.stuck.empty() || verdict.stuck.contains(ranks[i].rank))) return true;
    return false;
  }

  // On rank 0.
  void say(const std::vector<RankState>& ranks, Verdict verdict, const std::vector<ProcessStacks>& stacks,
           const std::vector<bool>& moved) {
    const bool one_moves = std::ranges::find(moved, true) != moved.end();
    if (!verdict.main_threads && has_moved(ranks, verdict, moved)) {
      verdict.certain = false;
      verdict.lines.push_back("a rank has moved on since");
    }
    const auto failed = std::ranges::find_if(ranks, has_failed);
    explained_failure_ = failed != ranks.end();
    std::vector<std::string> lines = groups(ranks);
    const std::vector<std::string> stack_lines = tree(stacks);
    for (const auto& more : {verdict.lines, stack_lines}) lines.insert(lines.end(), more.begin(), more.end());
    print(explained_failure_ ? "a rank has failed"
          : all_are_quiet_   ? fmt::format("no progress for {:g} s", options_.after)
          : proved_ && (verdict.certain || verdict.main_threads)
              ? fmt::format("no progress of {}{} for {:g} s", verdict.main_threads ? "the main threads of " : "",
                            rank_text({verdict.culprits.begin(), verdict.culprits.end()}), options_.after)
              : "asked by a signal",
          lines);
    nlohmann::json states;
    for (const RankState& one : ranks) states.push_back(fields_of(one));
    json_.write({{"cause", verdict.cause},
                 {"certain", verdict.certain},
                 {"ranks", verdict.culprits},
                 {"lines", verdict.lines},
                 {"groups", groups(ranks)},
                 {"stacks", stack_lines},
                 {"states", states}});
    if (verdict.certain || verdict.main_threads) explained_ = verdict.culprits;
    proved_ = false;
    if (!verdict.certain || one_moves || !options_.end) return;
    // If several ranks die at once, or one in MPI_Init or MPI_Finalize, Open MPI's mpirun may crash or hang (PMIx
    // 4.2.2, its list of fences). So one dies that is in neither, and mpirun ends the others. A rank that has failed
    // ends it with its own status.
    const auto outside = std::ranges::find_if(ranks, [](const RankState& one) {
      return std::ranges::none_of(one.waits, [](const Wait& wait) {
        return wait.call.communicator == start_id || wait.call.communicator == end_id;
      });
    });
    const auto ender = explained_failure_ ? failed : outside != ranks.end() ? outside : ranks.begin();
    ends_it_ = static_cast<int>(ender - ranks.begin());
  }

  // Collective: draws the timeline, and prints where the time went if the program has ended.
  void show_times(Clock::time_point until, bool at_the_end, const std::map<int, int>& waits_for = {}) {
    RankTimes times = observer_.times(world_.size());
    const RankState state = observer_.state(world_.rank(), Clock::now());
    times.rank = state.rank;
    times.host = multinode::host_name();
    times.first = clock_;
    times.until = until.time_since_epoch().count();
    times.ended = ended_;
    times.last = read_clock(world_);
    auto ranks = gather(world_, "the times", times);
    const auto states = gather(world_, "the communicators", state);
    if (world_.rank() != 0) return;
    const auto names = names_of(states);
    for (std::size_t i = 0; i < ranks.size(); ++i)
      for (const CommunicatorState& one : states[i].communicators) ranks[i].communicators[one.made] = names.at(one.id);
    std::map<std::pair<std::string, std::uint64_t>, std::string> known;
    const Where where = [&](const Place& place) {
      std::string& name = known[{place.object.data(), place.site}];
      return name.empty() ? name = place_name(place.object.data(), place.site) : name;
    };
    if (!options_.timeline.empty()) {
      Timeline timeline = timeline_of(ranks);
      for (TimedCall& call : timeline.calls)
        if (const auto found = waits_for.find(call.rank->rank); call.open && found != waits_for.end())
          call.waits_for = found->second;
      timeline.name = fmt::format("{}", fmt::join(options_.command, " "));
      timeline.name.erase(0, std::filesystem::path(options_.command[0]).remove_filename().string().size());
      const auto& draw = options_.timeline.ends_with(".svg") ? svg_of : trace_of;
      multinode::write_whole(options_.timeline, draw(timeline, options_.from, options_.to, where));
      multinode::say("who_waits", "the timeline is in " + options_.timeline);
    }
    if (!options_.time || !at_the_end) return;
    const TimeReport report = who_waits::report(ranks, where);
    print("where the time in calls went", report.lines);
    json_.write({{"what", "time"}, {"ranks", report.late}, {"lines", report.lines}});
  }

  static void print(const std::string& what, const std::vector<std::string>& lines) {
    std::cerr << fmt::format("who_waits: {}\n  {}\n", what, multinode::join(lines, "\n  ", multinode::one_line))
              << std::flush;
  }

  multinode::World& world_;
  const Options& options_;
  Observer& observer_;
  const int socket_;  // to the program's parent
  bool ends_program_ = false;
  pid_t pid_ = 0;
  std::optional<int> ended_;  // the program's exit status
  multinode::JsonLines json_;
  ClockReading clock_{};  // at the start
  std::optional<Clock::time_point> ended_at_;
  std::int64_t looks_ = 0, answered_ = 0;  // the looks so far, and the requests for one
  std::int64_t explained_moves_ = -1;      // on rank 0: number of "moves" that the last explanation knew
  std::uint64_t steps_ = 0;                // of the program, at this rank's last look
  bool quiet_ = false, waits_ = false, counted_end_ = false, explained_failure_ = false, counted_move_ = false;
  bool all_are_quiet_ = false, some_are_quiet_ = false, proved_ = false;  // on rank 0: why it asked for the next look
  Clock::time_point next_silent_look_{};                                  // on rank 0
  std::vector<int> explained_;                                            // on rank 0: the last culprits of a proof
  int ends_it_ = -1;  // the rank that ends the program; -1: it may continue
};

int status_of(const std::exception& e) {
  if (const auto* const start = dynamic_cast<const multinode::StartError*>(&e)) return start->status;
  return dynamic_cast<const UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
}

// The process that explains. Returns its exit status.
int explain_it(const Options& options, const multinode::Launch& launch, Observer& observer, int socket) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);  // what stops its parent's group does not stop it
  try {
    std::optional<std::jthread> missing;
    if (launch.world_size.value > 1) missing.emplace(expect_all, launch);
    const std::string rendezvous = rendezvous_of(options, launch);
    std::optional<multinode::World> world(std::in_place, "who_waits", launch,
                                          multinode::World::Options{.rendezvous = rendezvous});
    missing.reset();
    if (rendezvous.starts_with("file:") && options.rendezvous.empty() && launch.rank.value == 0)
      std::filesystem::remove(rendezvous.substr(std::string_view("file:").size()));  // all have read it
    try {
      const ClockReading clock = options.takes_times() ? read_clock(*world) : ClockReading{};
      tell(socket, {Message::met});
      Watch watch(*world, options, observer, socket);
      if (!watch.run(clock)) ::_exit(0);  // without waiting for the others
      world.reset();
      if (watch.ends_program()) tell(socket, {Message::end});
      return 0;
    } catch (const std::exception& e) {
      if (world) world->watchdog().fail(e.what(), status_of(e));
      throw;
    }
  } catch (const std::exception& e) {
    const char* const hint =
        options.rendezvous.empty() ? "; ranks without a common folder meet by --rendezvous tcp:HOST:PORT" : "";
    multinode::say("who_waits", fmt::format("{}{}; the program continues without it", e.what(), hint));
    return status_of(e);
  }
}

// Whether a process does not die of a signal: it catches it, or waits for it.
bool takes(pid_t pid, int signal) {
  const std::string status = multinode::read_text(fmt::format("/proc/{}/status", pid)).value_or("");
  return std::ranges::any_of(std::array{"SigCgt:", "SigBlk:"}, [&](const char* name) {
    const std::size_t at = status.find(name);
    return at != status.npos && std::stoull(status.substr(at + 7), nullptr, 16) >> (signal - 1) & 1;
  });
}

// Returns the exit status; negative: the signal that ended the program.
int run(int argc, char** argv) {
  const multinode::CleanOutput output(std::cout), errors(std::cerr);
  bool prints = true;
  try {
    const multinode::Launch launch = own_launch(multinode::current_environment());
    prints = launch.rank.value == 0;
    Options options;
    if (!parse(argc, argv, options, prints)) return multinode::flush_output("who_waits", multinode::exit_right);
    if (!options.attach.empty()) {
      multinode::World world("who_waits", launch, {.rendezvous = rendezvous_of(options, launch)});
      try {
        return multinode::flush_output("who_waits", attach(world, options.attach, prints ? options.json : ""));
      } catch (const std::exception& e) {
        world.watchdog().fail(e.what(), status_of(e));
        throw;
      }
    }
    multinode::ChildCommand command{.arguments = options.command};
    command.file = multinode::find_program(options.command[0], std::getenv("PATH") ? std::getenv("PATH") : "");
    const std::string library = library_for(command.file, launch.launcher);
    Observer observer;
    if (options.takes_times()) observer.take_times(options.from, options.to);
    std::vector<int> numbers(static_cast<std::size_t>(SIGRTMAX));
    std::iota(numbers.begin(), numbers.end(), 1);
    multinode::Signals signals(numbers);
    command.environment = environment_of_program(observer, library, !options.timeline.empty());
    command.mask = signals.before();
    command.when_parent_dies = SIGKILL;
    command.own_group = ::isatty(STDIN_FILENO) == 0;  // a launcher sends SIGUSR1 to the whole group
    if (prints && !options.timeline.empty()) multinode::open_in_place(options.timeline, true);  // or it throws
    prints = true;
    int sockets[2];
    multinode::check_errno(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, sockets), "socketpair");
    if (multinode::check_errno(::fork(), "fork") == 0) {
      ::close(sockets[0]);
      std::exit(explain_it(options, launch, observer, sockets[1]));
    }
    ::close(sockets[1]);
    const int socket = sockets[0];
    multinode::ChildProcess program(command);
    tell(socket, {Message::pid, program.pid()});
    const auto end = [&] { return program.ending()->signal ? -program.ending()->signal : program.ending()->status; };
    const auto failed = [&] { return program.ending() && (program.ending()->failed() || observer.unfinished()); };
    // If a program ends without MPI_Finalize, Slurm's PMIx kills the whole step a few ms later, before an explanation.
    const bool killed_soon = std::getenv("SLURM_STEP_ID") && std::getenv("PMIX_RANK") && launch.launcher != "Open MPI";
    int by_proof = multinode::exit_wrong;  // the status if --end ends the program
    bool told = false, met = false, explains = true, tells_end = false;
    std::optional<multinode::Deadline> limit;    // for the launcher to end what another rank ends
    std::optional<multinode::Deadline> to_meet;  // since the program's end, if the ranks have not met by then
    for (;;) {
      pollfd waits[2] = {{signals.descriptor(), POLLIN, 0}, {explains ? socket : -1, POLLIN, 0}};
      ::poll(waits, 2, 200);
      bool ends = false;
      while (const auto signal = signals.next()) {
        const int which = static_cast<int>(signal->ssi_signo);
        if (which == SIGUSR1) tell(socket, {Message::asked});
        if (which == SIGCHLD || which == SIGPIPE) continue;
        if (which == SIGUSR1 && !takes(program.pid(), which)) continue;
        const bool has_it = signal->ssi_code == SI_KERNEL && !command.own_group;  // from the terminal
        if (!program.ending() && !has_it) program.signal(which);
        if (which != SIGTERM && which != SIGINT && which != SIGHUP) continue;
        ends = told = true;
      }
      // A message that was sent before a signal counts before it.
      if (pollfd now{explains ? socket : -1, POLLIN, 0}; ::poll(&now, 1, 0) > 0) {
        const auto message = hear(socket);
        explains = message.has_value();
        met = met || (message && message->what == Message::met);
        if (message && message->what == Message::end) return by_proof;
        if (message && message->what == Message::ends_soon) {
          limit.emplace(10s);
          if (failed()) by_proof = end();
        }
      }
      if (limit && (ends || limit->passed())) return by_proof;
      // The program has stopped by Ctrl-Z or the like; by SIGSTOP, the process that explains stops it.
      siginfo_t stopped{};
      if (::waitid(P_PID, static_cast<id_t>(program.pid()), &stopped, WSTOPPED | WNOHANG) == 0 &&
          (stopped.si_status == SIGTSTP || stopped.si_status == SIGTTIN || stopped.si_status == SIGTTOU))
        ::raise(SIGSTOP);
      program.poll();
      if (killed_soon && failed()) return end();
      if (program.ending() && !std::exchange(tells_end, true))
        tell(socket, {told ? Message::told_to_end : Message::ended, program.ending()->as_exit_status()});
      if (program.ending() && !met) {
        if (!to_meet) to_meet.emplace(5s);
        if (to_meet->passed()) {
          if (launch.rank.value == 0) multinode::say("who_waits", "the ranks have not met before the program's end");
          return end();
        }
      }
      if (program.ending() && (told || !explains) && !limit) return end();
    }
  } catch (const std::exception& e) {
    if (prints) multinode::say("who_waits", e.what());
    return status_of(e);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int status = run(argc, argv);
  if (status >= 0) return status;
  ::prctl(PR_SET_DUMPABLE, 0);  // the program has written its core
  std::signal(-status, SIG_DFL);
  ::raise(-status);  // its launcher tells of the signal
  return 128 - status;
}
