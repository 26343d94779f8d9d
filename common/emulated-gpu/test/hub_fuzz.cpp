// Arbitrary bytes for the hub of an emulated NCCL communicator, over real connections: from strangers, and from ranks
// that know its id. Beside them idle connections come and go, and a job of two ranks goes on adding numbers.
#include "../hub.hpp"
#include "../wire.hpp"

#include <nlohmann/json.hpp>

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <span>
#include <thread>
#include <vector>

// Of the emulated runtime, which this program does not need.
namespace emulated_gpu {
void say(const std::string&) {}
std::chrono::seconds deadline() { return std::chrono::seconds(1000); }
}  // namespace emulated_gpu

using namespace emulated_gpu;
using nlohmann::json;

namespace {

constexpr int idle_connections = 30;  // api_test fills the queue, so that no stranger is served

void require(bool right) {
  if (!right) std::abort();
}

json hello(const std::string& id, const std::string& session, int rank, int size) {
  return {{"id", id},       {"session", session}, {"call", "fuzz"}, {"rank", rank},
          {"size", size},   {"who", "w"},         {"process", "p"}, {"machine", "of " + session},
          {"device", rank}, {"shrink_hub", ""}};
}

struct Socket {
  explicit Socket(const std::string& address) : fd(connect_to(address)) {
    require(static_cast<bool>(fd));
    const linger at_once{1, 0};  // leaves no port in TIME_WAIT
    setsockopt(fd.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  }
  void send(std::string_view bytes) const { ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL); }
  void send(Frame frame, std::string_view payload) const {
    if (frame.payload == 0) frame.payload = payload.size();
    send(std::string(reinterpret_cast<const char*>(&frame), sizeof frame).append(payload));
  }
  // Nothing more will be sent: the hub closes the connection.
  void end() const {
    ::shutdown(fd.get(), SHUT_WR);
    char rest[4096];
    while (::recv(fd.get(), rest, sizeof rest, 0) > 0) continue;
  }
  multinode::Descriptor fd;
};

// The job beside which everything happens.
class Job {
 public:
  Job() : hub_(Hub::make(error_)) {
    require(hub_ != nullptr);
    for (int rank = 0; rank < 2; ++rank) {
      ranks_.push_back(std::make_unique<Connection>(connect_to(address())));
      require(ranks_.back()->send(Kind::hello, hello(id(), "job", rank, 2).dump()));
    }
    for (const auto& rank : ranks_) require(answer_to(*rank).first.kind == Kind::welcome);
    idle_ = std::jthread([this](const std::stop_token& stop) {
      std::deque<Socket> all;
      for (int i = 0; !stop.stop_requested(); ++i) {
        const Socket& one = all.emplace_back(address());
        if (i % 3 == 1) one.send(std::string(5, 'x'));
        if (i % 3 == 2) one.send({.kind = Kind::hello, .payload = 60'000}, "{\"id\":");
        if (all.size() > idle_connections) all.pop_front();
        std::this_thread::sleep_for(std::chrono::milliseconds(3));
      }
    });
  }
  ~Job() {
    idle_ = {};
    for (const auto& rank : ranks_) rank->send(Kind::goodbye, "");
    hub_->close();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  const std::string& id() const { return hub_->id(); }
  std::string address() const {
    const std::string all = id().substr(std::strlen(id_mark) + 1);
    return all.substr(0, all.find(' '));
  }
  void adds() {
    const std::int32_t one = 1, two = 2;
    for (const auto& rank : ranks_)
      require(rank->send(
          {.kind = Kind::post,
           .id = ++number_,
           .post = {.op = Op::all_reduce, .type = ncclInt32, .count = 1, .number = number_ / 2 + number_ % 2}},
          &one, sizeof one));
    for (const auto& rank : ranks_) {
      const auto [frame, data] = answer_to(*rank);
      require(frame.kind == Kind::done && data.size() == sizeof two && std::memcmp(data.data(), &two, sizeof two) == 0);
    }
  }

 private:
  static std::pair<Frame, std::string> answer_to(Connection& rank) {
    Frame frame;
    std::string data;
    require(rank.receive(frame) && frame.payload < 4096 && rank.receive(data, frame.payload));
    return {frame, data};
  }

  std::string error_;
  std::shared_ptr<Hub> hub_;
  std::vector<std::unique_ptr<Connection>> ranks_;
  std::uint64_t number_ = 0;
  std::jthread idle_;
};

// A frame of a rank out of 10 bytes: often a call that can be, and then with the payload that belongs to it.
std::pair<Frame, std::string> frame_of(std::span<const std::uint8_t> bytes, int rank, int size) {
  Frame frame{.kind = Kind::post, .id = bytes[0]};
  CallMessage& post = frame.post;
  post.op = static_cast<Op>(bytes[1] % 16);
  post.reduction = static_cast<multinode::Reduction>(bytes[2] % 7 - 1);
  post.peer = bytes[3] % 4 - 1;
  post.count = bytes[4];
  post.number = bytes[5] % 4;
  post.connects = bytes[6] & 1;
  post.multiplied = bytes[6] & 2;
  post.factor = bytes[7] * std::uint64_t{0x0101010101010101};
  if (bytes[6] & 4) post.count <<= bytes[7] % 64;
  const int type = bytes[8] % 16;
  if (type < ncclNumTypes) post.type = static_cast<ncclDataType_t>(type);
  std::string payload(bytes[9], static_cast<char>(bytes[7]));
  if (post.op <= Op::split && type < ncclNumTypes && (bytes[6] & 56) && post.count <= 255)
    payload.resize(bytes_in(post, rank, size), 'p');
  if (type >= ncclNumTypes) std::memcpy(&post.type, &type, sizeof type);
  if (bytes[6] == 64) std::memset(&post.connects, bytes[7], 1);
  if (bytes[6] == 65) std::memset(&post.multiplied, bytes[7], 1);
  if (bytes[6] == 66) frame.kind = static_cast<Kind>(bytes[7]);
  if (bytes[6] == 67) frame.payload = ~std::uint64_t{0} >> bytes[7] % 64;
  return {frame, payload};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::unique_ptr<Job> job;
  static std::uint64_t inputs = 0;
  if (inputs++ % 4096 == 0) job = std::make_unique<Job>();  // a hub keeps the names of all its sessions
  if (size < 2) return 0;
  const std::span bytes(data + 2, size - 2);
  const std::string text(bytes.begin(), bytes.end()), session = "session " + std::to_string(inputs);
  if (data[0] % 4 == 0) {  // bytes of a stranger
    const Socket stranger(job->address());
    stranger.send(text);
    stranger.end();
  } else if (data[0] % 4 == 1) {  // a hello that lacks a part, or in which one is another
    json object = hello(job->id(), session, 0, 1);
    const std::string key = std::next(object.begin(), data[1] % static_cast<int>(object.size())).key();
    const json other = json::parse(text, nullptr, false);
    if (other.is_discarded())
      object.erase(key);
    else
      object[key] = other;
    const Socket stranger(job->address());
    stranger.send({.kind = Kind::hello}, object.dump(-1, ' ', false, json::error_handler_t::replace));
    stranger.end();
  } else {
    const int ranks = 1 + data[1] % 3;
    std::deque<Socket> all;
    for (int rank = 0; rank < ranks; ++rank)
      all.emplace_back(job->address()).send({.kind = Kind::hello}, hello(job->id(), session, rank, ranks).dump());
    constexpr std::size_t step = 10, most = 100 * step;
    for (std::size_t at = 0; at + step <= std::min(bytes.size(), most); at += step) {
      const int rank = bytes[at] % ranks;
      const auto [frame, payload] = frame_of(bytes.subspan(at, step), rank, ranks);
      all[static_cast<std::size_t>(rank)].send(frame, payload);
    }
    if (data[0] % 4 == 3)
      for (const Socket& one : all) one.send({.kind = Kind::goodbye}, "");
    for (const Socket& one : all) one.end();
  }
  job->adds();
  return 0;
}
