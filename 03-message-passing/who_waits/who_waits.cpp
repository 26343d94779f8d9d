// who_waits: starts a program with a library that records its calls of MPI, NCCL and CUDA, and explains a hang: which
// rank waits in which call, and for whom. Exit status: the program's; 1 if it cannot continue, 2 bad command line.
#include "attach.hpp"
#include "observer.hpp"
#include "packing.hpp"
#include "stacks.hpp"
#include "time.hpp"
#include "timeline.hpp"
#include "verdict.hpp"

#include <multinode/base/deadline.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/report.hpp>
#include <multinode/world/world.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <map>
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
  std::string json, rendezvous, timeline, attach;
  std::optional<double> from, to;
  std::vector<std::string> command;
};

bool parse(int argc, char** argv, Options& options, bool prints) {
  char** const end = argv + argc;
  char** const dashes = std::find(argv, end, std::string_view("--"));
  namespace po = boost::program_options;
  po::options_description known(
      "who_waits [options] -- PROGRAM [arguments]: runs the program, and explains it when it hangs.\n"
      "Every rank runs it: mpirun -n 4 who_waits -- ./program");
  known.add_options()(
      "after", po::value(&options.after)->default_value(options.after),
      "seconds without progress of any rank before the explanation; a signal SIGUSR1 asks for it at once")(
      "attach", po::value(&options.attach),
      "explain a job that hangs already: the name of its program, the pid of its launcher, or job:ID of Slurm or PBS. "
      "On several nodes: mpirun -N 1 who_waits --attach NAME")(
      "timeline", po::value(&options.timeline),
      "FILE.svg or FILE.json: a picture of what the ranks did, made at each explanation and at the end")(
      "from", po::value<double>()->notifier([&](double seconds) { options.from = seconds; }),
      "of the timeline: seconds since MPI_Init; negative: before the end")(
      "to", po::value<double>()->notifier([&](double seconds) { options.to = seconds; }), "likewise")(
      "time", po::bool_switch(&options.time),
      "at the end, prints where the time in calls went: waiting for late ranks, or for the network")(
      "json", po::value(&options.json), "file to which each explanation is added as a line of JSON")(
      "rendezvous", po::value(&options.rendezvous),
      "where the ranks meet: tcp:HOST:PORT or file:PATH (default: by the launcher; under MPI a file in the home "
      "folder)");
  if (!multinode::parse_command_line(static_cast<int>(dashes - argv), argv, known, prints)) return false;
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
  return true;
}

// The library to load into the program, for the MPI that it is linked with. A script may start any program: it gets
// that for the launcher. Throws UsageError.
std::string library_for(const std::string& file, const std::string& launcher) {
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  const std::string libraries = output_of("ldd " + quoted(file));         // "": a script, or static
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

std::vector<std::string> environment_of_program(const Observer& observer, const std::string& library) {
  multinode::Environment variables = multinode::current_environment();
  variables[record_variable] = observer.path();
  std::string& preload = variables["LD_PRELOAD"];
  preload = preload.empty() ? library : library + ":" + preload;
  std::vector<std::string> list;
  for (const auto& [name, value] : variables) list.push_back(name + "=" + value);
  return list;
}

// Where the ranks meet if their launcher does not say it. MPI cannot help, because the program uses it.
std::string rendezvous_of(const Options& options, const multinode::Launch& launch) {
  if (!options.rendezvous.empty() || !launch.under_mpi || launch.world_size.value == 1) return options.rendezvous;
  const char* const home = std::getenv("HOME");
  if (!home || !*home) throw UsageError("HOME is not set: give --rendezvous file:PATH, in a folder that all ranks see");
  std::string job = multinode::attempt_name(launch);
  std::ranges::replace(job, '/', '.');
  return fmt::format("file:{}/.who_waits-{}", home, job);
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
std::string place_name(const Place& place) {
  const std::string object = place.object.data();
  const std::string line = output_of(fmt::format("addr2line -s -e {} {:#x}", quoted(object), place.site));
  if (!line.empty() && line[0] != '?') return line.substr(0, line.find_first_of(" \n"));
  return fmt::format("{}+{:#x}", std::filesystem::path(object).filename().string(), place.site);
}

// Every rank's value, on rank 0.
template <class T>
std::vector<T> gather(multinode::World& world, const char* name, const T& value) {
  std::vector<T> all;
  for (std::string& text : world.gather_on_rank_0(name, packed(value))) all.push_back(unpacked<T>(std::move(text)));
  return all;
}

// The looks at all ranks: rank 0 decides when, and explains what it sees.
class Watch {
 public:
  Watch(multinode::World& world, const Options& options, Observer& observer, multinode::ChildProcess& child)
      : world_(world),
        options_(options),
        observer_(observer),
        child_(child),
        json_(world.rank() == 0 ? options.json : "", true) {}

  // Returns the exit status. `clock`: at the start.
  int run(multinode::Signals& signals, const ClockReading& clock) {
    clock_ = clock;
    const auto between =
        std::max(1000ms, std::chrono::milliseconds(world_.size() / 5));  // at most 5,000 turns per second
    for (auto next = Clock::now();;) {
      pollfd waits{signals.descriptor(), POLLIN, 0};
      ::poll(&waits, 1, 200);
      bool ended = child_.ending().has_value();
      while (const auto signal = signals.next()) {
        const int which = static_cast<int>(signal->ssi_signo);
        if (which == SIGUSR1) number("asked", 1);
        if (which == SIGUSR1 || which == SIGCHLD) continue;
        if (!ended) child_.signal(which);
        told_to_end_ = true;
      }
      if (child_.poll()) ended_at_ = next = Clock::now(), ended = true;
      observer_.look(Clock::now());
      if (Clock::now() < next) continue;
      if (told_to_end_) {  // nothing to explain, and the other ranks may be gone
        if (ended) return child_.ending()->as_exit_status();
        continue;
      }
      next = Clock::now() + (ended ? std::min<std::chrono::milliseconds>(between, 100ms) : between);
      turn();
      if (explained_end_ && child_.ending()->failed()) return child_.ending()->as_exit_status();
      if (ends_it_ >= 0) return multinode::exit_wrong;
      if (number("over")) {
        if (takes_times()) show_times(*ended_at_, true);
        world_.barrier("the end");
        return 0;
      }
    }
  }
  // The program cannot continue, and it is not this rank that ends it where only one does.
  bool another_ends_it() const { return ends_it_ >= 0 && ends_it_ != world_.rank(); }

 private:
  std::int64_t number(const char* key, std::int64_t add = 0) { return world_.store().add(key, add); }

  // What each rank does once per second. Looks and the end are collective: rank 0 alone starts them, one after the
  // other.
  void turn() {
    const bool ended = child_.ending().has_value();
    const bool quiet = ended || observer_.quiet(Clock::now()) >= options_.after;
    // What counts is that a rank has moved since the last look, not that rank 0 saw it move: between two of its turns,
    // all may have moved and become quiet again.
    if (!counted_move_ && ((ended && !counted_end_) || observer_.steps() != steps_)) {
      counted_move_ = true;
      number("moves", 1);
    }
    if (ended && !counted_end_) {  // before it counts as quiet: rank 0 may look in between
      counted_end_ = true;
      if (child_.ending()->failed()) number("asked", 1);
      number("ended", 1);
    }
    if (quiet != quiet_) number("quiet", quiet ? 1 : -1);
    quiet_ = quiet;
    if (world_.rank() == 0) {
      const bool all_ended = number("ended") == world_.size();  // before it sees who asked: a rank that failed has
      all_are_quiet_ = !all_ended && number("quiet") == world_.size() && number("moves") > explained_moves_;
      if (all_are_quiet_ || number("asked") > answered_)
        number("looks", 1);
      else if (all_ended)
        number("over", 1);
    }
    if (number("looks") > looks_) look();
  }

  void look() {
    ++looks_;
    explained_end_ = child_.ending().has_value();
    const std::int64_t moves = number("moves");
    observer_.look(Clock::now());
    steps_ = observer_.steps();
    counted_move_ = false;
    RankState state = observer_.state(world_.rank(), Clock::now());
    if (child_.ending()) state.ended = child_.ending()->as_exit_status();
    if (!state.pid) state.pid = child_.pid();
    ProcessStacks stacks;
    if (!state.ended) {
      state.process = process_state(state.pid);
      const bool outside = state.waits.empty() && !state.polled;
      if (outside || program_of(state.pid).starts_with("python")) stacks = stacks_of(state.pid);
      state.stack = stack_line(stacks);
    }
    stacks.rank = state.rank;
    const auto ranks = gather(world_, "the state of the program", state);
    auto all_stacks = gather(world_, "the stacks", stacks);
    std::erase_if(all_stacks, [](const ProcessStacks& one) { return one.threads.empty(); });
    Verdict verdict;
    const auto has_failed = [](const RankState& one) { return one.ended.value_or(0) != 0; };
    const bool failed = std::ranges::any_of(ranks, has_failed);
    const bool one_moves =
        std::ranges::any_of(ranks, [&](const RankState& one) { return !one.ended && one.quiet < options_.after; });
    // If a rank has moved since it counted as quiet, there is nothing to explain yet. Nobody asks during a look.
    const bool explains = world_.rank() == 0 && !(all_are_quiet_ && one_moves && !failed);
    if (explains) answered_ = number("asked"), explained_moves_ = moves, verdict = explain(ranks);
    // The ranks were not seen at the same time. What they did then holds now if none of them has moved since.
    observer_.look(Clock::now());
    const auto moved = gather(world_, "who has moved", observer_.steps() != steps_);
    if (explains) {
      if (std::ranges::find(moved, true) != moved.end()) {
        verdict.certain = false;
        verdict.lines.push_back("a rank has moved on since");
      }
      std::vector<std::string> lines = groups(ranks);
      for (const auto& more : {verdict.lines, tree(all_stacks)}) lines.insert(lines.end(), more.begin(), more.end());
      print(failed           ? "a rank has failed"
            : all_are_quiet_ ? fmt::format("no progress for {:g} s", options_.after)
                             : "asked by a signal",
            lines);
      json_.write({{"cause", verdict.cause},
                   {"certain", verdict.certain},
                   {"ranks", verdict.culprits},
                   {"lines", verdict.lines},
                   {"groups", groups(ranks)}});
      // If several ranks die at once, or one in MPI_Init or MPI_Finalize, Open MPI's mpirun may crash or hang (PMIx
      // 4.2.2, its list of fences). So one dies that is in neither, and mpirun ends the others.
      const auto outside = std::ranges::find_if(ranks, [](const RankState& one) {
        return std::ranges::none_of(one.waits, [](const Wait& wait) {
          return wait.call.communicator == start_id || wait.call.communicator == end_id;
        });
      });
      // A rank that has failed ends it with its own status.
      const auto failed_one = std::ranges::find_if(ranks, has_failed);
      const auto ender = failed_one != ranks.end() ? failed_one : outside != ranks.end() ? outside : ranks.begin();
      if (verdict.certain) ends_it_ = static_cast<int>(ender - ranks.begin());
    }
    ends_it_ = std::stoi(world_.broadcast("the explanation", std::to_string(ends_it_)));
    if (!options_.timeline.empty()) show_times(ended_at_.value_or(Clock::now()), false);
  }

  bool takes_times() const { return options_.time || !options_.timeline.empty(); }

  // Collective: draws the timeline, and prints where the time went if the program has ended.
  void show_times(Clock::time_point until, bool at_the_end) {
    RankTimes times = observer_.times(world_.size());
    times.rank = observer_.state(world_.rank(), Clock::now()).rank;
    times.host = multinode::host_name();
    times.first = clock_;
    times.until = until.time_since_epoch().count();
    if (child_.ending()) times.ended = child_.ending()->as_exit_status();
    times.last = read_clock(world_);
    const auto ranks = gather(world_, "the times", times);
    if (world_.rank() != 0) return;
    std::map<std::pair<std::string, std::uint64_t>, std::string> known;
    const Where where = [&](const Place& place) {
      std::string& name = known[{place.object.data(), place.site}];
      return name.empty() ? name = place_name(place) : name;
    };
    if (!options_.timeline.empty()) {
      Timeline timeline = timeline_of(ranks);
      timeline.name = fmt::format("{}", fmt::join(options_.command, " "));
      timeline.name.erase(0, std::filesystem::path(options_.command[0]).remove_filename().string().size());
      const auto& draw = options_.timeline.ends_with(".svg") ? svg_of : trace_of;
      multinode::write_whole(options_.timeline, draw(timeline, options_.from, options_.to, where));
      std::cerr << fmt::format("who_waits: the timeline is in {}\n", options_.timeline) << std::flush;
    }
    if (!options_.time || !at_the_end) return;
    const TimeReport report = who_waits::report(ranks, where);
    print("where the time in calls went", report.lines);
    json_.write({{"what", "time"}, {"cause", report.cause}, {"ranks", report.late}, {"lines", report.lines}});
  }

  static void print(const std::string& what, const std::vector<std::string>& lines) {
    std::cerr << fmt::format("who_waits: {}\n  {}\n", what, fmt::join(lines, "\n  ")) << std::flush;
  }

  multinode::World& world_;
  const Options& options_;
  Observer& observer_;
  multinode::ChildProcess& child_;
  multinode::JsonLines json_;
  ClockReading clock_{};  // at the start
  std::optional<Clock::time_point> ended_at_;
  std::int64_t looks_ = 0, answered_ = 0;  // the looks so far, and the requests for one
  std::int64_t explained_moves_ = -1;      // on rank 0: number of "moves" that the last explanation knew
  std::uint64_t steps_ = 0;                // of the program, at this rank's last look
  bool quiet_ = false, counted_end_ = false, explained_end_ = false, counted_move_ = false, told_to_end_ = false;
  bool all_are_quiet_ = false;  // on rank 0: why it asked for the next look
  int ends_it_ = -1;            // the rank that ends the program; -1: it may continue
};

int status_of(const std::exception& e) {
  if (const auto* const start = dynamic_cast<const multinode::StartError*>(&e)) return start->status;
  return dynamic_cast<const UsageError*>(&e) ? multinode::exit_usage : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  bool prints = true;
  try {
    const multinode::Launch launch = multinode::read_launch(multinode::current_environment());
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
    const bool times = options.time || !options.timeline.empty();
    if (times) observer.take_times(options.from, options.to);
    multinode::Signals signals{SIGCHLD, SIGUSR1, SIGTERM, SIGINT, SIGHUP};
    command.environment = environment_of_program(observer, library);
    command.mask = signals.before();
    command.when_parent_dies = SIGKILL;
    command.own_group = ::isatty(STDIN_FILENO) == 0;  // a launcher sends SIGUSR1 to the whole group
    if (prints && !options.timeline.empty()) multinode::open_in_place(options.timeline, true);  // or it throws
    prints = true;
    std::optional<multinode::World> world(std::in_place, "who_waits", launch,
                                          multinode::World::Options{.rendezvous = rendezvous_of(options, launch)});
    try {
      const ClockReading clock = times ? read_clock(*world) : ClockReading{};
      multinode::ChildProcess child(command);
      Watch watch(*world, options, observer, child);
      const int status = watch.run(signals, clock);
      if (watch.another_ends_it() && launch.launcher == "Open MPI") {
        world.reset();  // rank 0 waits for this
        pollfd signal{signals.descriptor(), POLLIN, 0};
        for (multinode::Deadline limit(10s); !limit.passed();)
          if (::poll(&signal, 1, 100) > 0)
            if (const auto one = signals.next(); one && one->ssi_signo == SIGTERM) break;
      }
      return status;
    } catch (const std::exception& e) {
      if (world) world->watchdog().fail(e.what(), status_of(e));
      throw;
    }
  } catch (const std::exception& e) {
    if (prints) std::cerr << std::string("who_waits: ") + e.what() + "\n";
    return status_of(e);
  }
}
