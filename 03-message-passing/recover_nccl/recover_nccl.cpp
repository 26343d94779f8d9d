// recover_nccl: one all-reduce per step, and recovery when a rank dies: notice it (asynchronous errors, a deadline),
// agree out of band on the survivors and on the step to continue from, abort the communicator, and make a new one.
// Exit status: 0 every step right, 1 a step wrong or this rank left out, 2 bad command line or environment, 77 no GPU.
#include <multinode/base/options.hpp>
#include <multinode/base/output.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/base/text.hpp>
#include <multinode/communicator/device.hpp>
#include <multinode/launch.hpp>
#include <multinode/store/secret.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/world/report.hpp>

#include <nlohmann/json.hpp>

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;
using multinode::check;
using multinode::UsageError;

struct Options {
  int steps = 20;
  int kill = -1, at_step = 5;
  bool shrink = false;
  multinode::CommonOptions common;
};

// Aborts the communicator: its operations may wait for a dead rank, so ncclCommDestroy might never return.
struct Abort {
  void operator()(ncclComm_t communicator) const { ncclCommAbort(communicator); }
};
using Aborted = std::unique_ptr<ncclComm, Abort>;

// An operation that will not complete, and the reason.
struct Trouble : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::string list_of(const std::vector<int>& ranks) { return multinode::join(ranks, ","); }

// How ranks talk to each other without NCCL. The values are counters; a key that no rank has written counts as 0.
class OutOfBand {
 public:
  OutOfBand(const multinode::Launch& launch, std::chrono::milliseconds timeout) {
    multinode::StorePlace place;
    if (launch.launcher_store) {
      place = launch.launcher_store->value;
    } else if (!launch.master_address.value.empty() && launch.master_port.value) {
      const multinode::Secret secret = multinode::read_secret(launch.secret_source);
      place = {{launch.master_address.value, launch.master_port.value},
               multinode::token_for(secret, "recover " + multinode::generation(launch))};
      if (launch.rank.value == 0 && secret.bytes.empty()) std::cerr << multinode::warning_without_secret(secret) + "\n";
      if (launch.rank.value == 0)
        server_ = std::make_unique<multinode::TcpStoreServer>(place.host, place.port,
                                                              multinode::TcpStoreServer::Entry{place.token});
    } else {
      throw UsageError("no meeting place: set MASTER_ADDR and MASTER_PORT, or start it with mnrun");
    }
    store_ = std::make_unique<multinode::TcpStore>(place, timeout, multinode::protocol::Hello{.token = place.token});
    store_->set_on_disconnect(dead(launch.rank.value), "1");  // the store writes it when this process is gone
  }
  ~OutOfBand() {
    try {
      if (std::uncaught_exceptions() == 0) store_->goodbye();  // otherwise the will reports this rank as gone
    } catch (const std::runtime_error&) {                      // the store has ended already
    }
    store_.reset();
    if (server_) server_->wait_for_disconnects(10s);  // the others may still need it
  }
  OutOfBand(const OutOfBand&) = delete;
  OutOfBand& operator=(const OutOfBand&) = delete;

  static std::string dead(int rank) { return "dead " + std::to_string(rank); }
  // Not by add(key, 0): that would create the key, and a will writes only keys that do not exist.
  std::int64_t number(const std::string& key) {
    const std::string text = store_->compare_set(key, "?", "?");
    return text.empty() ? 0 : std::stoll(text);
  }
  bool said(const std::string& key) { return number(key) > 0; }
  void say(const std::string& key, std::int64_t number = 1) { store_->add(key, number); }
  multinode::TcpStore& store() { return *store_; }

 private:
  std::unique_ptr<multinode::TcpStoreServer> server_;
  std::unique_ptr<multinode::TcpStore> store_;
};

class Job {
 public:
  Job(const Options& options, const multinode::Launch& launch)
      : options_(options),
        rank_(launch.rank.value),
        others_(launch, options.common.timeout),
        host_(1000),
        block_(host_.size()) {
    for (int rank = 0; rank < launch.world_size.value; ++rank) members_.push_back(rank);
  }
  ~Job() {
    if (communicator_) ncclCommAbort(communicator_);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  int run();

 private:
  std::string key(const std::string& what) const { return "epoch " + std::to_string(epoch_) + " " + what; }
  int place() const { return static_cast<int>(std::ranges::find(members_, rank_) - members_.begin()); }
  void tell(const std::string& what) const {
    std::cout << "rank " + std::to_string(rank_) + ": " + what + "\n" << std::flush;
  }

  void expect(ncclResult_t code, const char* call) const;
  void await(
      const char* call, const std::function<bool()>& done = [] { return true; }) {
    await(communicator_, call, done);
  }
  void await(ncclComm_t communicator, const char* call, const std::function<bool()>& done);
  bool healthy() const;
  ncclConfig_t config() const;
  void initialize();
  void step();
  void recover(const std::string& why);
  void destroy();

  const Options& options_;
  const int rank_;  // as started; its index in members_ is its rank in the communicator
  OutOfBand others_;
  std::vector<int> members_;
  int epoch_ = 0;  // number of recoveries
  int step_ = 1;
  std::vector<std::int64_t> host_;  // outlives an abandoned step, in which the stream may still be copying
  multinode::Stream stream_;
  multinode::DeviceBuffer<std::int64_t> block_;
  ncclComm_t communicator_ = nullptr;
};

void Job::expect(ncclResult_t code, const char* call) const {
  if (code != ncclSuccess && code != ncclInProgress)
    throw Trouble(std::string(call) + ": " + ncclGetErrorString(code) + " (" + ncclGetLastError(communicator_) + ")");
}

// Whether ncclCommShrink would take the communicator: it refuses one with an error or an unfinished call.
bool Job::healthy() const {
  ncclResult_t state = ncclSuccess;
  return communicator_ && ncclCommGetAsyncError(communicator_, &state) == ncclSuccess && state == ncclSuccess;
}

// Waits until the communicator has done `call`, and then until done(). Throws Trouble if NCCL reports an error, another
// rank does or is gone, or the deadline passes. NCCL reports no error when a process of the same node dies, because
// they share memory and no connection. So each rank watches the next one, and tells the others.
void Job::await(ncclComm_t communicator, const char* call, const std::function<bool()>& done) {
  const int next = members_[static_cast<std::size_t>(place() + 1) % members_.size()];
  multinode::Deadline deadline(options_.common.timeout);
  for (auto asked = Clock::now();; std::this_thread::sleep_for(50us)) {
    ncclResult_t state = ncclSuccess;
    expect(ncclCommGetAsyncError(communicator, &state), call);
    expect(state, call);
    if (state == ncclSuccess && done()) return;
    const auto now = Clock::now();
    if (deadline.passed()) throw Trouble(std::string(call) + " did not complete before the deadline");
    if (now - asked < 50ms) continue;
    asked = now;
    if (others_.said(key("trouble"))) throw Trouble(std::string(call) + ": another rank has trouble");
    if (others_.said(OutOfBand::dead(next)))
      throw Trouble(std::string(call) + ": rank " + std::to_string(next) + " is gone");
  }
}

// Non-blocking: every call returns at once, so this rank can always check the deadline and the other ranks.
ncclConfig_t Job::config() const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  return config;
}

void Job::initialize() {
  ncclUniqueId id{};
  if (place() == 0) {
    check(ncclGetUniqueId(&id));
    others_.store().set(key("id"), {id.internal, sizeof id.internal});
  } else {
    multinode::Deadline deadline(options_.common.timeout);
    for (bool here = false; !here;) {
      try {
        others_.store().get(key("id"), 50ms).copy(id.internal, sizeof id.internal);
        here = true;
      } catch (const multinode::StoreTimeout&) {
        if (others_.said(OutOfBand::dead(members_[0]))) throw Trouble("the rank that makes the unique id is gone");
        if (deadline.passed()) throw Trouble("no unique id before the deadline");
      }
    }
  }
  ncclConfig_t settings = config();
  const auto size = static_cast<int>(members_.size());
  expect(ncclCommInitRankConfig(&communicator_, size, id, place(), &settings), "ncclCommInitRankConfig");
  await("ncclCommInitRankConfig");
}

// Element i of each rank is rank + step + i, so the sum shows which ranks took part and in which step they were.
void Job::step() {
  stream_.synchronize();  // an abandoned step may have left work on the stream; its communicator has been aborted
  for (std::size_t i = 0; i < host_.size(); ++i) host_[i] = rank_ + step_ + static_cast<std::int64_t>(i);
  block_.copy_from(host_, stream_.get());
  if (rank_ == options_.kill && step_ == options_.at_step) raise(SIGKILL);

  expect(ncclAllReduce(block_.data(), block_.data(), block_.size(), ncclInt64, ncclSum, communicator_, stream_.get()),
         "ncclAllReduce");
  // First until it is on the stream, then until the stream is done.
  await("ncclAllReduce", [this] { return cudaStreamQuery(stream_.get()) == cudaSuccess; });

  block_.copy_to(host_, stream_.get());
  stream_.synchronize();
  for (std::size_t i = 0; i < host_.size(); ++i) {
    std::int64_t sum = 0;
    for (const int rank : members_) sum += rank + step_ + static_cast<std::int64_t>(i);
    if (host_[i] != sum)
      throw std::runtime_error("WRONG: step " + std::to_string(step_) + ", element " + std::to_string(i) + " is " +
                               std::to_string(host_[i]) + ", not " + std::to_string(sum));
  }
  if (place() == 0) tell("step " + std::to_string(step_) + " is right among ranks " + list_of(members_));
}

void Job::recover(const std::string& why) {
  tell("trouble: " + why);
  // Every rank writes the step that it is in. A rank that stays silent past the deadline is treated as dead.
  others_.say(key("trouble"));
  if (!healthy()) others_.say(key("broken"));  // before "alive": who has read all of those knows
  others_.say(key("alive " + std::to_string(rank_)), step_);
  multinode::Deadline deadline(options_.common.timeout);
  std::vector<int> alive;  // the ranks that answered
  int earliest = step_;    // a rank may have completed a step that another has not
  for (bool all = false; !all && !deadline.passed(); std::this_thread::sleep_for(5ms)) {
    alive.clear();
    all = true;
    for (const int rank : members_) {
      if (const auto step = static_cast<int>(others_.number(key("alive " + std::to_string(rank)))); step > 0) {
        alive.push_back(rank);
        earliest = std::min(earliest, step);
      } else {
        all = all && others_.said(OutOfBand::dead(rank));
      }
    }
  }
  // Ranks may have seen different things. The first answer to reach the store is valid for all ranks.
  const bool shrink = options_.shrink && !others_.said(key("broken"));
  const nlohmann::json proposal = {{"step", earliest}, {"ranks", alive}, {"shrink", shrink}};
  const auto agreed = nlohmann::json::parse(others_.store().compare_set(key("survivors"), "", proposal.dump()));
  step_ = agreed.at("step");
  const std::vector<int> survivors = agreed.at("ranks");
  if (std::ranges::find(survivors, rank_) == survivors.end())
    throw std::runtime_error(
        "the other ranks have continued without this one, because it was silent for longer than --timeout");

  std::vector<int> excluded;  // by their ranks in the communicator
  for (std::size_t i = 0; i < members_.size(); ++i)
    if (std::ranges::find(survivors, members_[i]) == survivors.end()) excluded.push_back(static_cast<int>(i));
  tell("continues from step " + std::to_string(step_) + " with ranks " + list_of(survivors));
  Aborted before(std::exchange(communicator_, nullptr));
  members_ = survivors;
  ++epoch_;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  if (agreed.at("shrink") && !excluded.empty()) {
    ncclConfig_t settings = config();
    expect(ncclCommShrink(before.get(), excluded.data(), static_cast<int>(excluded.size()), &communicator_, &settings,
                          NCCL_SHRINK_ABORT),
           "ncclCommShrink");
    // NCCL writes the new communicator when it is complete. Until then only the old one can be asked.
    await(before.get(), "ncclCommShrink", [] { return true; });
    await("ncclCommShrink");
    tell("has shrunk the communicator");
    return;
  }
#endif
  before.reset();  // ends its kernels, so the stream no longer waits for them
  initialize();
}

// All steps are done, so it does no harm if other ranks have ended already.
void Job::destroy() try {
  expect(ncclCommFinalize(communicator_), "ncclCommFinalize");
  await("ncclCommFinalize");
  check(ncclCommDestroy(std::exchange(communicator_, nullptr)));
} catch (const Trouble&) {
}

int Job::run() {
  std::optional<std::string> trouble;
  for (bool started = false; step_ <= options_.steps;) {
    try {
      if (trouble) {
        recover(*std::exchange(trouble, std::nullopt));
      } else if (!std::exchange(started, true)) {
        initialize();
      } else {
        step();
        ++step_;
      }
    } catch (const Trouble& e) {
      trouble = e.what();
    }
  }
  destroy();
  if (place() == 0) {
    tell("RIGHT: " + std::to_string(options_.steps) + " steps, recoveries: " + std::to_string(epoch_) +
         ", ranks at the end: " + list_of(members_));
    multinode::JsonLines(options_.common.json)
        .write({{"right", true}, {"steps", options_.steps}, {"recoveries", epoch_}, {"ranks", members_}});
  }
  return multinode::exit_right;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  namespace po = boost::program_options;
  po::options_description known("Options of recover_nccl");
  known.add_options()("steps", po::value(&options.steps)->default_value(options.steps), "number of all-reduces")(
      "kill", po::value(&options.kill), "rank that kills itself ...")(
      "at-step", po::value(&options.at_step)->default_value(options.at_step), "... in this step")(
      "shrink", po::bool_switch(&options.shrink), "recover with ncclCommShrink instead of a new unique id");
  known.add(options.common.description());
  try {
    const multinode::Launch launch = multinode::read_launch(multinode::current_environment());
    if (!multinode::parse_command_line(argc, argv, known, launch.rank.value == 0))
      return multinode::flush_output("recover_nccl", multinode::exit_right);
    multinode::require_range("--steps", options.steps, 1, 1'000'000'000);
    if (options.common.backend != "auto" && options.common.backend != "nccl")
      throw UsageError("--backend " + options.common.backend + ": this program shows NCCL");
#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 0)
    if (options.shrink) throw UsageError("--shrink: ncclCommShrink came with NCCL 2.27");
#endif
    const int devices = multinode::device_count();
    if (devices == 0) throw multinode::HardwareAbsent("no GPU here: NCCL needs one");
    check(cudaSetDevice(launch.local_rank.value % devices));
    return multinode::flush_output("recover_nccl", Job(options, launch).run());
  } catch (const std::exception& e) {
    std::cerr << std::string("recover_nccl: ") + e.what() + "\n";
    if (dynamic_cast<const UsageError*>(&e)) return multinode::exit_usage;
    return dynamic_cast<const multinode::HardwareAbsent*>(&e) ? multinode::exit_hardware_absent : multinode::exit_wrong;
  }
}
