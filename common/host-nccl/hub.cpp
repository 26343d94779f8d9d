#include "hub.hpp"

#include "device.hpp"
#include "wire.hpp"

#include <multinode/text.hpp>

#include <fmt/format.h>
#include <nccl.h>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <span>
#include <thread>
#include <vector>

namespace host_nccl {

namespace {

using Clock = std::chrono::steady_clock;
using multinode::Descriptor;
using nlohmann::json;

using Bytes = std::vector<std::byte>;

// A call that waits for those of the other ranks.
struct Waiting {
  Post post;
  std::uint64_t id = 0;
  Bytes data;
  Clock::time_point since = Clock::now();
  bool said = false;
};

// One communicator.
class Session {
 public:
  Session(std::string name, int size)
      : name_(std::move(name)), members_(static_cast<std::size_t>(size)), began_(Clock::now()) {}

  // Returns false, after sending the reason, if this rank cannot join.
  bool join(const std::shared_ptr<Connection>& connection, const json& hello);
  void take(int rank, const Frame& frame, Bytes data);
  void leave(int rank, Kind how);  // goodbye, aborted, or hello: the connection was lost
  void look_at_the_clock();
  bool ended() const;
  bool has_guests() const;

 private:
  struct Member {
    std::shared_ptr<Connection> connection;
    json hello;
    bool here = false;
    std::string last = "none";  // its last call
    std::string who(int rank) const { return fmt::format("rank {} ({})", rank, std::string(hello["who"])); }
  };
  // Indexed by rank.
  using Collective = std::vector<std::optional<Waiting>>;
  struct Pair {
    std::map<std::uint64_t, Waiting> sends, recvs;
  };

  int size() const { return static_cast<int>(members_.size()); }
  Member& member(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void fail(ncclResult_t code, const std::string& text, bool say_it);
  void start();
  void take_collective(int rank, Waiting call);
  void take_transfer(int rank, Waiting call);
  void perform(const Collective& calls);
  void done(int rank, std::uint64_t id, std::span<const std::byte> data);
  void say_late(const Collective& calls);
  void say_late(int from, int to, const Waiting& call);

  const std::string name_;
  mutable std::mutex mutex_;
  std::vector<Member> members_;
  int joined_ = 0, left_ = 0;
  bool started_ = false, failed_ = false, said_ = false;
  std::string failure_;
  ncclResult_t failure_code_ = ncclSuccess;
  Clock::time_point began_;
  std::map<std::uint64_t, Collective> collectives_;
  std::map<std::pair<int, int>, Pair> pairs_;  // from, to
};

bool Session::join(const std::shared_ptr<Connection>& connection, const json& hello) {
  const std::lock_guard lock(mutex_);
  const int rank = hello["rank"], its_size = hello["size"];
  const std::string who = hello["who"];
  std::string why;
  if (its_size != size())
    why = fmt::format("{} has world size {}, others have {}", who, its_size, size());
  else if (rank < 0 || rank >= size())
    why = fmt::format("{} has rank {} of {}", who, rank, size());
  else if (member(rank).connection)
    why = fmt::format("rank {} joined twice: from {} and from {}", rank, who, std::string(member(rank).hello["who"]));
  else
    for (int other = 0; other < size(); ++other)
      if (member(other).connection && member(other).hello["gpu"] == hello["gpu"])
        why = fmt::format("duplicate GPU: {} and rank {} ({}) both use device {}", member(other).who(other), rank, who,
                          int(hello["device"]));
  if (!why.empty()) {
    connection->send(Kind::failed, name_ + ": " + why, ncclInvalidUsage);
    if (!started_) fail(ncclInvalidUsage, name_ + ": " + why, false);
    return false;
  }
  Member& own = member(rank);
  own.connection = connection;
  own.hello = hello;
  own.here = true;
  if (failed_) {
    connection->send(Kind::failed, failure_, failure_code_);
    return false;
  }
  if (++joined_ == size()) start();
  return true;
}

void Session::start() {
  started_ = true;
  json table = json::array();
  for (const Member& one : members_) table.push_back({{"who", one.hello["who"]}, {"spare", one.hello["spare"]}});
  for (const Member& one : members_) one.connection->send(Kind::welcome, table.dump());
}

void Session::fail(ncclResult_t code, const std::string& text, bool say_it) {
  if (failed_) return;
  failed_ = true;
  failure_ = text;
  failure_code_ = code;
  if (say_it) say(text);
  for (Member& one : members_)
    if (one.here) one.connection->send(Kind::failed, text, code);
}

void Session::leave(int rank, Kind how) {
  const std::lock_guard lock(mutex_);
  Member& own = member(rank);
  if (!own.here) return;
  own.here = false;
  ++left_;
  if (how == Kind::goodbye) {
    own.last = "ncclCommDestroy";
    return;
  }
  fail(ncclRemoteError,
       own.who(rank) + (how == Kind::aborted ? " has aborted the communicator"
                                             : " is gone: its connection closed, after " + own.last),
       false);
}

bool Session::ended() const {
  const std::lock_guard lock(mutex_);
  return started_ ? left_ == size() : failed_;
}

bool Session::has_guests() const {
  const std::lock_guard lock(mutex_);
  if (failed_ || !started_) return false;
  bool guests = false;
  for (const Member& one : members_) {
    const bool own = one.hello["process"] == process_token();
    if (own && one.here) return false;
    guests = guests || (!own && one.here);
  }
  return guests;
}

void Session::take(int rank, const Frame& frame, Bytes data) {
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  member(rank).last = text_of(frame.post);
  Waiting call{.post = frame.post, .id = frame.id, .data = std::move(data)};
  if (is_collective(frame.post.op))
    take_collective(rank, std::move(call));
  else
    take_transfer(rank, std::move(call));
}

std::string difference(const Post& a, const Post& b) {
  if (a.op != b.op) return "different calls";
  if (a.count != b.count) return "different counts";
  if (a.type != b.type) return "different types";
  if (reduces(a.op) && (a.reduction != b.reduction || a.multiplied != b.multiplied)) return "different reductions";
  if (has_root(a.op) && a.peer != b.peer) return "different roots";
  return "";
}

void Session::take_collective(int rank, Waiting call) {
  const std::uint64_t number = call.post.number;
  Collective& calls = collectives_.try_emplace(number, Collective(members_.size())).first->second;
  for (int other = 0; other < size(); ++other) {
    const auto& its = calls[static_cast<std::size_t>(other)];
    if (!its) continue;
    if (const std::string what = difference(its->post, call.post); !what.empty()) {
      std::string first = member(other).who(other) + " called " + text_of(its->post),
                  second = member(rank).who(rank) + " called " + text_of(call.post);
      if (rank < other) first.swap(second);
      return fail(ncclInvalidUsage,
                  fmt::format("{} in collective number {} of the communicator: {}, {}", what, number, first, second),
                  true);
    }
  }
  calls[static_cast<std::size_t>(rank)] = std::move(call);
  if (!std::ranges::all_of(calls, [](const auto& one) { return one.has_value(); })) return;
  const Collective all = std::move(calls);
  collectives_.erase(number);
  perform(all);
}

void Session::take_transfer(int rank, Waiting call) {
  const bool sends = call.post.op == Op::send;
  const int peer = call.post.peer;
  const auto key = sends ? std::pair(rank, peer) : std::pair(peer, rank);
  Pair& pair = pairs_[key];
  const std::uint64_t number = call.post.number;
  (sends ? pair.sends : pair.recvs).emplace(number, std::move(call));
  const auto sent = pair.sends.find(number), received = pair.recvs.find(number);
  if (sent == pair.sends.end() || received == pair.recvs.end()) return;
  const Post &out = sent->second.post, &in = received->second.post;
  if (out.count != in.count || out.type != in.type)
    return fail(ncclInvalidUsage,
                fmt::format("different {} in message number {} between two ranks: {} called {}, {} called {}",
                            out.count != in.count ? "counts" : "types", number, member(key.first).who(key.first),
                            text_of(out), member(key.second).who(key.second), text_of(in)),
                true);
  done(key.second, received->second.id, sent->second.data);
  done(key.first, sent->second.id, {});
  pair.sends.erase(sent);
  pair.recvs.erase(received);
}

void Session::done(int rank, std::uint64_t id, std::span<const std::byte> data) {
  // Its reader detects a broken connection.
  member(rank).connection->send({.kind = Kind::done, .id = id}, data.data(), data.size());
}

// All inputs, reduced in order of rank.
Bytes reduced(const std::vector<std::optional<Waiting>>& calls) {
  const Post& post = calls[0]->post;
  const std::size_t count = calls[0]->data.size() / multinode::size_of(post.type);
  Bytes all;
  for (const auto& call : calls) {
    Bytes own = call->data;
    if (post.multiplied)
      multinode::with_type(post.type, [&]<class T>(T) {
        for (T& element : std::span(reinterpret_cast<T*>(own.data()), count))
          element = static_cast<T>(static_cast<double>(element) * call->post.factor);
      });
    if (all.empty())
      all = std::move(own);
    else
      multinode::combine(post.type, post.reduction, all.data(), all.data(), own.data(), count);
  }
  if (post.reduction == multinode::Reduction::average)
    multinode::divide(post.type, all.data(), count, static_cast<int>(calls.size()));
  return all;
}

void Session::perform(const Collective& calls) {
  const Post& post = calls[0]->post;
  const auto ranks = calls.size();
  const auto root = static_cast<std::size_t>(post.peer);
  const std::size_t block = post.bytes();
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
    done(static_cast<int>(rank), calls[rank]->id, data.first(bytes_out(post, static_cast<int>(rank), size())));
  }
}

void Session::look_at_the_clock() {
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock || failed_) return;
  const auto late = Clock::now() - deadline();
  if (!started_ && !said_ && began_ < late) {
    said_ = true;
    std::vector<int> missing;
    for (int rank = 0; rank < size(); ++rank)
      if (!member(rank).connection) missing.push_back(rank);
    say(fmt::format(
        "{} of {} ranks has waited for {} s: {} {} not called it. A thread that creates several ranks must do so in "
        "one "
        "group.",
        name_, size(), deadline().count(), multinode::rank_list(missing), missing.size() == 1 ? "has" : "have"));
  }
  for (auto& [number, calls] : collectives_)
    for (auto& call : calls)
      if (call && call->since < late && !call->said) {
        say_late(calls);
        for (auto& one : calls)
          if (one) one->said = true;
      }
  for (auto& [ranks, pair] : pairs_)
    for (auto* waiting : {&pair.sends, &pair.recvs})
      for (auto& [number, call] : *waiting)
        if (call.since < late && !std::exchange(call.said, true)) say_late(ranks.first, ranks.second, call);
}

void Session::say_late(const Collective& calls) {
  std::vector<int> inside;
  std::string missing;
  const Waiting* any = nullptr;
  for (int rank = 0; rank < size(); ++rank) {
    if (const auto& call = calls[static_cast<std::size_t>(rank)]) {
      inside.push_back(rank);
      any = &*call;
    } else {
      missing += fmt::format("; {} has not called it; its last call: {}", member(rank).who(rank), member(rank).last);
    }
  }
  say(fmt::format("{}, collective number {}, has waited for {} s on {}{}", text_of(any->post), any->post.number,
                  deadline().count(), multinode::rank_list(inside), missing));
}

void Session::say_late(int from, int to, const Waiting& call) {
  const bool sends = call.post.op == Op::send;
  const int rank = sends ? from : to, peer = sends ? to : from;
  std::string text =
      fmt::format("{} of {} has waited for {} s for its {} on rank {}; that rank's last call: {}", text_of(call.post),
                  member(rank).who(rank), deadline().count(), sends ? "ncclRecv" : "ncclSend", peer, member(peer).last);
  const auto back = pairs_.find({to, from});  // both send, or both receive
  if (back != pairs_.end() && !(sends ? back->second.sends : back->second.recvs).empty())
    text += fmt::format(". Both {} first: the calls of such a pair belong between ncclGroupStart and ncclGroupEnd",
                        sends ? "send" : "receive");
  say(text);
}

class RealHub : public Hub, public std::enable_shared_from_this<RealHub> {
 public:
  RealHub(Descriptor fd, const std::string& host) : fd_(std::move(fd)) {
    std::random_device random;
    id_ = std::string(id_mark) + " " + address_of(fd_.get(), host);
    for (int i = 0; i < 4; ++i) id_ += (i ? "-" : " ") + std::to_string(random());
  }

  const std::string& id() const override { return id_; }
  void close() override { shutdown(fd_.get(), SHUT_RDWR); }

  void run() {
    std::thread([self = shared_from_this()] { self->accept_all(); }).detach();
  }
  bool has_guests() const {
    const std::lock_guard lock(mutex_);
    return std::ranges::any_of(sessions_, [](const auto& one) { return one.second->has_guests(); });
  }

 private:
  void accept_all();
  void serve(const std::shared_ptr<Connection>& connection);

  Descriptor fd_;
  std::string id_;
  mutable std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Session>> sessions_;
};

// All hubs of this process that still listen.
struct Hubs {
  std::mutex mutex;
  std::vector<std::weak_ptr<RealHub>> all;
  static Hubs& get() {
    static Hubs& hubs = *new Hubs;  // threads may still use it when the process ends
    return hubs;
  }
};

void RealHub::accept_all() {
  pollfd waiting{fd_.get(), POLLIN, 0};
  for (bool anybody = false, closed = false;;) {
    {
      const std::lock_guard lock(mutex_);
      bool ended = closed || !sessions_.empty();
      for (const auto& [name, session] : sessions_) {
        session->look_at_the_clock();
        ended = ended && session->ended();
      }
      if (ended) return;
    }
    if (poll(&waiting, closed ? 0 : 1, anybody ? 100 : -1) <= 0) continue;
    anybody = true;
    Descriptor fd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!fd) {
      closed = errno == EINVAL;  // close()
      continue;
    }
    const int on = 1;
    setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    std::thread([self = shared_from_this(), connection = std::make_shared<Connection>(std::move(fd))] {
      self->serve(connection);
    }).detach();
  }
}

void RealHub::serve(const std::shared_ptr<Connection>& connection) {
  Frame frame;
  std::string text;
  if (!connection->receive(frame) || frame.kind != Kind::hello || frame.payload > 65536 ||
      !connection->receive(text, frame.payload))
    return;
  const json hello = json::parse(text, nullptr, false);
  if (!hello.is_object() || hello["id"] != id_) return;
  std::shared_ptr<Session> session;
  {
    const std::lock_guard lock(mutex_);
    auto& found = sessions_[hello["session"]];
    if (!found) found = std::make_shared<Session>(hello["call"], int(hello["size"]));
    session = found;
  }
  if (!session->join(connection, hello)) return;
  const int rank = hello["rank"];
  Kind how = Kind::hello;
  while (connection->receive(frame)) {
    if (frame.kind == Kind::post) {
      Bytes data(frame.payload);
      if (!connection->receive(data.data(), data.size())) break;
      session->take(rank, frame, std::move(data));
    } else {
      how = frame.kind;
      break;
    }
  }
  session->leave(rank, how);
  connection->shut_down();
}

}  // namespace

std::shared_ptr<Hub> Hub::make(std::string& error) {
  const std::string host = own_host();
  if (host.empty()) {
    error = "no interface that matches NCCL_SOCKET_IFNAME has an IPv4 address";
    return nullptr;
  }
  auto fd = listen_on(host);
  if (!fd) {
    error = "cannot listen on " + host + ": " + std::strerror(errno);
    return nullptr;
  }
  const auto hub = std::make_shared<RealHub>(std::move(fd), host);
  hub->run();
  Hubs& hubs = Hubs::get();
  const std::lock_guard lock(hubs.mutex);
  std::erase_if(hubs.all, [](const auto& one) { return one.expired(); });
  hubs.all.push_back(hub);
  return hub;
}

void wait_for_guests() {
  const auto end = Clock::now() + deadline();
  for (;;) {
    bool guests = false;
    {
      Hubs& hubs = Hubs::get();
      const std::lock_guard lock(hubs.mutex);
      for (const auto& one : hubs.all)
        if (const auto hub = one.lock()) guests = guests || hub->has_guests();
    }
    if (!guests || Clock::now() > end) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

const std::string& process_token() {
  static const std::string& token = *new std::string([] {
    std::random_device random;
    return std::to_string(getpid()) + "-" + std::to_string(random()) + "-" + std::to_string(random());
  }());
  return token;
}

}  // namespace host_nccl
