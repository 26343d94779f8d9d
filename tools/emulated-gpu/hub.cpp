#include "hub.hpp"

#include "device.hpp"
#include "wire.hpp"

#include <multinode/base/text.hpp>

#include <fmt/format.h>
#include <nccl.h>

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <system_error>
#include <thread>
#include <vector>

namespace emulated_gpu {

namespace {

using Clock = std::chrono::steady_clock;
using multinode::Descriptor;

using Bytes = std::vector<std::byte>;

// Of a connection's first message, which may be anybody's.
constexpr std::size_t most_hello_bytes = 65536;

std::string random_text() {  // of 64 bits
  std::random_device random;
  return fmt::format("{}-{}", random(), random());
}

// A call that waits for those of the other ranks.
struct Waiting {
  int rank = 0;
  CallMessage post;
  std::uint64_t id = 0;
  Bytes data;
  Clock::time_point since = Clock::now();
  bool said = false;
};

class Hub : public std::enable_shared_from_this<Hub> {
 public:
  Hub() {
    std::string address;
    fd_ = listen(address);
    id_ = fmt::format("{} {} {}-{}", id_mark, address, random_text(), random_text());
  }
  const std::string& id() const { return id_; }
  void accept_all();
  bool has_remote_ranks() const;

 private:
  struct Participant {
    std::shared_ptr<Connection> connection;
    Hello hello;
    bool here = false;
    std::string last = "none";  // its last call
    std::string who(int rank) const { return fmt::format("rank {} ({})", rank, hello.who); }
  };
  // Those of a collective, by rank, or of a sender and its receiver.
  using Calls = std::vector<std::optional<Waiting>>;
  // Connections and calls are counted apart. `from` and `to` are of a message, or -1.
  struct Key {
    bool connects = false;
    Op op{};
    int from = -1, to = -1;
    std::uint64_t number = 0, begin = 0;
    auto operator<=>(const Key&) const = default;
  };
  static Key key_of(int rank, const CallMessage& post) {
    Key key{.connects = post.connects, .number = post.connects ? 0 : post.number, .begin = post.begin};
    if (post.connects && is_of_messages(post.op)) key.op = post.op;
    if (post.op == Op::send) key.from = rank, key.to = post.peer;
    if (post.op == Op::recv) key.from = post.peer, key.to = rank;
    return key;
  }

  int size() const { return static_cast<int>(participants_.size()); }
  Participant& participant(int rank) { return participants_[static_cast<std::size_t>(rank)]; }
  void serve(const std::shared_ptr<Connection>& connection);
  std::optional<Hello> hello_of(Connection& connection) const;
  bool join(const std::shared_ptr<Connection>& connection, const Hello& hello);
  void take(int rank, const Frame& frame, Bytes data);
  void leave(int rank, Kind how);  // goodbye, aborted, or hello: the connection was lost
  bool look_at_the_clock();
  void fail(ncclResult_t code, const std::string& text, bool say_it);
  std::string called(const Waiting& call);
  void perform(const Calls& calls);
  void done(int rank, std::uint64_t id, std::span<const std::byte> data);
  void say_late(const Calls& calls);
  void say_late(const Waiting& call, const Key& key);

  Descriptor fd_;
  std::string id_;
  mutable std::mutex mutex_;  // guards the members below
  std::string call_;          // that makes the communicator
  std::vector<Participant> participants_;
  int joined_ = 0, left_ = 0;
  bool started_ = false, failed_ = false, broken_ = false, said_ = false;
  std::string failure_;
  ncclResult_t failure_code_ = ncclSuccess;
  Clock::time_point began_;  // when the first rank joined
  std::map<Key, Calls> waiting_;
};

// Returns false, after sending the reason, if this rank cannot join.
bool Hub::join(const std::shared_ptr<Connection>& connection, const Hello& hello) {
  const std::lock_guard lock(mutex_);
  const int rank = hello.rank;
  std::string why;
  if (participants_.empty()) {
    call_ = hello.call;
    participants_.resize(static_cast<std::size_t>(hello.size));
    began_ = Clock::now();
  }
  if (hello.size != size())
    why = fmt::format("{} has world size {}, others have {}", hello.who, hello.size, size());
  else if (participant(rank).connection)
    why = fmt::format("rank {} joined twice: from {} and from {}", rank, hello.who, participant(rank).hello.who);
  else
    for (int other = 0; other < size(); ++other)  // NCCL's words, with its bus id
      if (participant(other).connection && participant(other).hello.machine == hello.machine &&
          participant(other).hello.device == hello.device)
        why = fmt::format(
            "Duplicate GPU detected : rank {} and rank {} both on CUDA device {:x}: {} and {} both use GPU {}", other,
            rank, hello.device << 4, participant(other).hello.who, hello.who, hello.device);
  if (!why.empty()) {
    connection->send(Kind::failed, call_ + ": " + why, ncclInvalidUsage);
    if (!started_) fail(ncclInvalidUsage, call_ + ": " + why, false);
    return false;
  }
  Participant& joining = participant(rank);
  joining.connection = connection;
  joining.hello = hello;
  joining.here = true;
  if (failed_) {
    connection->send(Kind::failed, failure_, failure_code_);
    return false;
  }
  started_ = ++joined_ == size();
  if (started_)
    for (const Participant& one : participants_) one.connection->send(Kind::welcome, own_machine());
  return true;
}

void Hub::fail(ncclResult_t code, const std::string& text, bool say_it) {
  if (failed_) return;
  failed_ = true;
  failure_ = text;
  failure_code_ = code;
  if (say_it) report(text);
  for (Participant& one : participants_)
    if (one.here) one.connection->send(Kind::failed, text, code);
}

void Hub::leave(int rank, Kind how) {
  const std::lock_guard lock(mutex_);
  Participant& leaving = participant(rank);
  if (!leaving.here) return;
  leaving.here = false;
  ++left_;
  if (how == Kind::goodbye) {
    leaving.last = "ncclCommDestroy";
    return;
  }
  broken_ = true;
  const std::string text =
      leaving.who(rank) + (how == Kind::aborted ? " has aborted the communicator"
                                                : " is gone: its connection closed, after " + leaving.last);
  if (!started_) return fail(ncclRemoteError, text, false);
  leaving.last = how == Kind::aborted ? "ncclCommAbort" : leaving.last + "; its process is gone";
  // NCCL notices only a broken network connection: on the same machine, the others wait in silence.
  for (Participant& one : participants_)
    if (one.here && one.hello.machine != leaving.hello.machine)
      one.connection->send(Kind::failed, text, ncclRemoteError);
}

bool Hub::has_remote_ranks() const {
  const std::lock_guard lock(mutex_);
  if (failed_ || broken_ || !started_) return false;
  bool remote_ranks = false;
  for (const Participant& one : participants_) {
    const bool is_here = one.hello.process == process_token();
    if (is_here && one.here) return false;
    remote_ranks = remote_ranks || (!is_here && one.here);
  }
  return remote_ranks;
}

std::string difference(const CallMessage& a, const CallMessage& b) {
  if (is_collective(a.op) && a.op != b.op) return "different calls";
  if (a.count != b.count) return "different counts";
  if (a.type != b.type) return "different types";
  if (reduces(a.op) && a.reduction != b.reduction) return "different reductions";
  if (has_root(a.op) && a.peer != b.peer) return "different roots";
  return "";
}

std::string Hub::called(const Waiting& call) {
  return participant(call.rank).who(call.rank) + " called " + text_of(call.post);
}

void Hub::take(int rank, const Frame& frame, Bytes data) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  participant(rank).last = text_of(frame.post);
  const Key key = key_of(rank, frame.post);
  const bool message = key.from >= 0;
  Calls& calls = waiting_.try_emplace(key, Calls(message ? 2 : participants_.size())).first->second;
  const auto place = static_cast<std::size_t>(!message ? rank : frame.post.op == Op::send ? 0 : 1);
  calls[place] = Waiting{.rank = rank, .post = frame.post, .id = frame.id, .data = std::move(data)};
  for (const auto& other : calls) {
    const std::string what = other && !key.connects ? difference(other->post, frame.post) : "";
    if (what.empty()) continue;
    const bool first = &other < &calls[place];
    return fail(ncclInvalidUsage,
                fmt::format("{} in {} number {} {}: {}, {}", what, message ? "message" : "collective", key.number,
                            message ? "between two ranks" : "of the communicator",
                            called(first ? *other : *calls[place]), called(first ? *calls[place] : *other)),
                true);
  }
  if (!std::ranges::all_of(calls, [](const auto& one) { return one.has_value(); })) return;
  const Calls all = std::move(calls);
  waiting_.erase(key);
  perform(all);
}

void Hub::done(int rank, std::uint64_t id, std::span<const std::byte> data) {
  // Its reader detects a broken connection.
  participant(rank).connection->send({.kind = Kind::done, .id = id}, data.data(), data.size());
}

// Multiplies floats by 1 / ranks, each rounded once, as the kernels of NCCL do for an average. Returns false for
// integers.
bool scale(multinode::DataType type, Bytes& data, int ranks) {
  return multinode::with_type(type, [&]<class T>(T) {
    using Number = std::conditional_t<std::is_same_v<T, double>, double, float>;
    if constexpr (!std::is_integral_v<T>) {
      const auto factor = static_cast<Number>(static_cast<T>(static_cast<Number>(1.0 / ranks)));
      for (T& element : std::span(reinterpret_cast<T*>(data.data()), data.size() / sizeof(T)))
        element = static_cast<T>(static_cast<Number>(element) * factor);
    }
    return !std::is_integral_v<T>;
  });
}

// All inputs, reduced in an order that differs from call to call, as if each had a ring that starts elsewhere. The
// number of the call decides it, so programs can be run again.
Bytes reduced(const std::vector<std::optional<Waiting>>& calls) {
  const CallMessage& post = calls[0]->post;
  const std::size_t count = calls[0]->data.size() / multinode::size_of(post.type);
  const int ranks = static_cast<int>(calls.size());
  const bool average = post.reduction == multinode::Reduction::average;
  bool scaled = false;
  const std::size_t start = std::mt19937_64(post.number)() % calls.size();
  Bytes all;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    Bytes data = calls[(start + i) % calls.size()]->data;
    if (average) scaled = scale(post.type, data, ranks);
    if (all.empty())
      all = std::move(data);
    else
      multinode::combine(post.type, post.reduction, all.data(), all.data(), data.data(), count);
  }
  if (average && !scaled) multinode::divide(post.type, all.data(), count, ranks);
  return all;
}

void Hub::perform(const Calls& calls) {
  const CallMessage& post = calls[0]->post;
  if (post.op == Op::send) {
    done(calls[1]->rank, calls[1]->id, calls[0]->data);
    return done(calls[0]->rank, calls[0]->id, {});
  }
  const auto ranks = calls.size();
  const auto root = static_cast<std::size_t>(post.peer);
  const std::size_t block = post.bytes(post.length);
  const auto part = [&](const Bytes& data, std::size_t rank) { return std::span(data).subspan(rank * block, block); };
  const Bytes all = reduces(post.op) ? reduced(calls) : Bytes();
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    Bytes gathered;
    std::span<const std::byte> data = all;
    if (post.op == Op::reduce_scatter) data = part(all, rank);
    if (post.op == Op::broadcast) data = calls[root]->data;
    if (post.op == Op::scatter) data = part(calls[root]->data, rank);
    if (post.op == Op::all_gather || post.op == Op::gather || post.op == Op::all_to_all) {
      for (const auto& call : calls) {
        const auto from = part(call->data, post.op == Op::all_to_all ? rank : 0);
        gathered.insert(gathered.end(), from.begin(), from.end());
      }
      data = gathered;
    }
    done(static_cast<int>(rank), calls[rank]->id, data.first(block * blocks_out(post, static_cast<int>(rank), size())));
  }
}

// Returns false when all ranks have left.
bool Hub::look_at_the_clock() {
  const std::lock_guard lock(mutex_);
  if (participants_.empty()) return true;
  if (failed_) return !started_ || left_ < size();  // late ranks hear the reason
  const auto late = Clock::now() - deadline();
  if (!started_ && !said_ && began_ < late) {
    said_ = true;
    std::vector<int> missing;
    for (int rank = 0; rank < size(); ++rank)
      if (!participant(rank).connection) missing.push_back(rank);
    say(fmt::format(
        "{} of {} ranks has waited for {} s: {} {} not called it. A thread that creates several ranks must do so in "
        "one group.",
        call_, size(), deadline().count(), multinode::rank_list(missing), missing.size() == 1 ? "has" : "have"));
  }
  for (auto& [key, calls] : waiting_) {
    const auto first = std::ranges::find_if(calls, [](const auto& call) { return call.has_value(); });
    if (std::ranges::any_of(calls, [](const auto& call) { return call && call->said; }) ||
        std::ranges::none_of(calls, [&](const auto& call) { return call && call->since < late; }))
      continue;
    (*first)->said = true;
    if (key.from < 0)
      say_late(calls);
    else
      say_late(**first, key);
  }
  return left_ < size();
}

const char* const in_the_call = ". The thread waits in the call, because the first one sets up the connection";

void Hub::say_late(const Calls& calls) {
  std::vector<int> inside;
  std::string missing;
  const Waiting* any = nullptr;
  for (int rank = 0; rank < size(); ++rank) {
    if (const auto& call = calls[static_cast<std::size_t>(rank)]) {
      inside.push_back(rank);
      any = &*call;
    } else {
      missing +=
          fmt::format("; {} has not called it; its last call: {}", participant(rank).who(rank), participant(rank).last);
    }
  }
  if (any->post.connects) missing += in_the_call;
  const auto of_process_inside = [&](const Participant& one) {
    return !calls[static_cast<std::size_t>(one.hello.rank)] &&
           one.hello.process == participant(inside[0]).hello.process;
  };
  if (any->post.connects && std::ranges::any_of(participants_, of_process_inside))
    missing += ". If one thread calls for several ranks, its calls belong between ncclGroupStart and ncclGroupEnd";
  say(fmt::format("{}, collective number {}, has waited for {} s on {}{}", text_of(any->post), any->post.number,
                  deadline().count(), multinode::rank_list(inside), missing));
}

void Hub::say_late(const Waiting& call, const Key& key) {
  const bool sends = call.post.op == Op::send;
  const int peer = call.post.peer;
  std::string text = fmt::format("{} of {} has waited for {} s for its {} on rank {}; that rank's last call: {}",
                                 text_of(call.post), participant(call.rank).who(call.rank), deadline().count(),
                                 sends ? "ncclRecv" : "ncclSend", peer, participant(peer).last);
  const bool both = std::ranges::any_of(waiting_, [&](const auto& other) {  // both send, or both receive
    return other.first.from == key.to && other.first.to == key.from && other.second[sends ? 0 : 1];
  });
  if (both)
    text += fmt::format(". Both {} first: the calls of such a pair belong between ncclGroupStart and ncclGroupEnd",
                        sends ? "send" : "receive");
  else if (key.connects)
    text += in_the_call;
  say(text);
}

// All hubs of this process. Never destroyed: threads may still use them when the process ends.
struct Hubs {
  std::mutex mutex;
  std::set<std::shared_ptr<Hub>> all;
};

void Hub::accept_all() {
  pollfd waiting{fd_.get(), POLLIN, 0};
  while (look_at_the_clock()) {
    if (poll(&waiting, 1, 100) <= 0) continue;
    Descriptor fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    try {
      if (!fd) throw std::system_error(errno, std::generic_category());
      std::thread([self = shared_from_this(), connection = std::make_shared<Connection>(std::move(fd))] {
        self->serve(connection);
      }).detach();
    } catch (const std::exception&) {  // no descriptor, memory or thread is left: a moment later there may be
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

// The first message, if it has the secret.
std::optional<Hello> Hub::hello_of(Connection& connection) const {
  Frame frame;
  std::string text;
  if (!connection.receive(frame) || frame.kind != Kind::hello || frame.payload > most_hello_bytes ||
      !connection.receive(text, frame.payload))
    return std::nullopt;
  try {
    const auto hello = nlohmann::json::parse(text).get<Hello>();
    if (hello.id == id_) return hello;
  } catch (const nlohmann::json::exception&) {
  }
  return std::nullopt;
}

void Hub::serve(const std::shared_ptr<Connection>& connection) {
  const std::optional<Hello> hello = hello_of(*connection);
  if (!hello || !join(connection, *hello)) return connection->shut_down();
  Kind how = Kind::hello;
  for (Frame frame; connection->receive(frame);) {
    if (frame.kind != Kind::post) {
      how = frame.kind;
      break;
    }
    try {
      Bytes data(frame.payload);
      if (!connection->receive(data.data(), data.size())) break;
      take(hello->rank, frame, std::move(data));
    } catch (const std::bad_alloc&) {
      const std::lock_guard lock(mutex_);
      fail(ncclSystemError, fmt::format("no memory is left for {} of rank {}", text_of(frame.post), hello->rank), true);
      break;
    }
  }
  leave(hello->rank, how);
  connection->shut_down();
}

}  // namespace

std::string start_hub() {
  const auto hub = std::make_shared<Hub>();
  Hubs& hubs = the<Hubs>();
  const std::lock_guard lock(hubs.mutex);
  hubs.all.insert(hub);
  std::thread([hub, &hubs] {
    hub->accept_all();
    const std::lock_guard ended(hubs.mutex);
    hubs.all.erase(hub);
  }).detach();
  return hub->id();
}

void wait_for_guests() {
  Hubs& hubs = the<Hubs>();
  const std::lock_guard lock(hubs.mutex);
  for (const auto end = Clock::now() + deadline(); Clock::now() < end;) {
    if (std::ranges::none_of(hubs.all, &Hub::has_remote_ranks)) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

const std::string& process_token() {
  static const std::string& token = *new std::string(fmt::format("{}-{}", getpid(), random_text()));
  return token;
}

}  // namespace emulated_gpu
