// Arbitrary bytes for the parsers on both sides of the TcpStore: they may throw only Violation, what they parse must
// encode to the same bytes, and memory must not grow beyond the bytes received. What ranks can say goes to an arbiter.
#include <multinode/store/arbiter.hpp>
#include <multinode/store/store_protocol.hpp>

#include <cstdint>
#include <cstdlib>

using namespace multinode::protocol;

namespace {

void require(bool right) {
  if (!right) std::abort();
}

template <class Function>
void unless_violation(Function&& function) try {
  function();
} catch (const Violation&) {
}

// Three ranks that have joined; frames are theirs in turn.
class Judged {
 public:
  Judged() {
    for (int r = 0; r < 3; ++r) join(r);
  }
  void hear(const Hello& hello) {
    if (hello.rank >= 0) arbiter_.join(hello, now_);
    joined_ = hello.rank >= 0 ? hello.rank : joined_;
  }
  void hear(Request request) {
    const int rank = next_++ % 4 == 3 ? joined_ : next_ % 3;
    join(rank);
    if (request.operation == Operation::beat) {
      arbiter_.beat(rank, request.progress, now_);
    } else if (request.operation == Operation::fail) {
      arbiter_.fail(rank, request.status, request.value, now_);
    } else if (request.operation == Operation::goodbye) {
      if (next_ % 2) arbiter_.leave(rank);
      arbiter_.lose(rank);
    }
    now_ += std::chrono::milliseconds(200);
    arbiter_.tick(now_);
    arbiter_.take_notice();
    join(0);
    arbiter_.prints_verdict(0);
    if (!arbiter_.verdict()) return;
    require(!arbiter_.verdict()->second.empty() && !arbiter_.busy());
  }

 private:
  // A rank whose connection was lost before its first heartbeat is unknown: the server does not let it speak.
  void join(int rank) { arbiter_.join({"", "", rank, 3, 1000, "host", "node"}, now_); }

  multinode::Arbiter arbiter_;
  multinode::Arbiter::Time now_{};
  int next_ = 0, joined_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t step = 1 + data[0];  // the stream arrives in pieces of this size
  std::string_view left(reinterpret_cast<const char*>(data) + 1, size - 1);
  FrameReader reader;
  Judged judged;
  std::size_t came = 0;
  unless_violation([&] {
    while (!left.empty()) {
      const auto piece = left.substr(0, step);
      left.remove_prefix(piece.size());
      reader.append(piece);
      came += piece.size();
      while (const auto frame = reader.next()) {
        unless_violation([&] {
          const auto answer = parse_answer(*frame);
          require(encode(answer.status, answer.body).substr(4) == *frame);
        });
        unless_violation([&] { parse_verdict(*frame); });
        unless_violation([&] {
          const auto hello = parse_hello(*frame);
          require(encode(hello).substr(4) == *frame);
          judged.hear(hello);
        });
        unless_violation([&] {
          const auto request = parse_request(*frame);
          require(encode(request).substr(4) == *frame);
          judged.hear(request);
        });
      }
      require(reader.capacity() <= 2 * came + 64);
    }
  });
  return 0;
}
