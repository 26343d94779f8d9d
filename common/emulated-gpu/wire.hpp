// wire.hpp: the messages between the ranks of a communicator and its hub, over TCP.
#pragma once

#include "elements.hpp"

#include <multinode/base/descriptor.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

namespace emulated_gpu {

enum class Op : std::uint32_t {
  all_reduce,
  reduce,
  broadcast,
  reduce_scatter,
  all_gather,
  all_to_all,
  gather,
  scatter,
  send,
  recv,
  split  // which first exchanges a few bytes of host memory
};
const char* name_of(Op op);  // "ncclAllReduce"
inline bool is_exchange(Op op) { return op == Op::split; }
inline bool is_collective(Op op) { return op != Op::send && op != Op::recv; }
// Those that NCCL makes of sends and receives, each with its own connections; the others use the ring.
inline bool is_of_messages(Op op) { return op == Op::all_to_all || op == Op::gather || op == Op::scatter; }
inline bool has_root(Op op) { return op == Op::reduce || op == Op::broadcast || op == Op::gather || op == Op::scatter; }
inline bool reduces(Op op) { return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter; }

// A call of one rank.
struct CallMessage {
  Op op{};
  ncclDataType_t type{};
  multinode::Reduction reduction{};
  std::int32_t peer = 0;     // of send and recv, or the root
  std::uint64_t count = 0;   // elements of a block, like NCCL's count
  std::uint64_t number = 0;  // among the collectives of this communicator, or the messages between two ranks
  bool connects = false;     // sets up the connection that this call needs, before the call: no data
  bool multiplied = false;   // each rank's input, by `factor`, before the sum
  Scalar factor = 0;

  std::size_t bytes() const { return connects ? 0 : count * size_of(type); }
};
// The bytes of the send buffer and of the receive buffer of `rank` of `size`.
std::size_t bytes_in(const CallMessage& post, int rank, int size);
std::size_t bytes_out(const CallMessage& post, int rank, int size);
std::string text_of(const CallMessage& post);  // "ncclSend(100 x int32, to rank 1)"

enum class Kind : std::uint32_t { hello, welcome, post, done, failed, goodbye, aborted };
struct Frame {
  Kind kind{};
  std::int32_t code = 0;      // failed: an ncclResult_t
  std::uint64_t id = 0;       // of a post; done repeats it
  std::uint64_t payload = 0;  // bytes that follow
  CallMessage post{};
};

class Connection {
 public:
  explicit Connection(multinode::Descriptor fd) : fd_(std::move(fd)) {}

  // Return false if the connection is broken.
  bool send(Frame frame, const void* payload = nullptr, std::size_t bytes = 0);
  bool send(Kind kind, const std::string& text, std::int32_t code = 0);
  bool receive(Frame& frame);
  bool receive(void* to, std::size_t bytes);
  bool receive(std::string& text, std::size_t bytes);
  // In pieces, so that memory is only taken for bytes that have come.
  bool receive(std::vector<std::byte>& data, std::size_t bytes);
  void shut_down();  // makes the calls of both sides return
  // Until when all calls of receive() together may last; nullopt: without end.
  void set_deadline(std::optional<std::chrono::steady_clock::time_point> deadline);

 private:
  std::optional<std::chrono::steady_clock::time_point> deadline_;
  multinode::Descriptor fd_;
  std::mutex sending_;
};

// "127.0.0.1:12345"
std::string address_of(int listening_fd, const std::string& host);
// What NCCL takes for the name of this machine: NCCL_HOSTID, or the host's name.
std::string own_machine();
// The IPv4 address of the interface that NCCL_SOCKET_IFNAME selects, or loopback if it is not set; "" if none matches.
std::string own_host();
multinode::Descriptor listen_on(const std::string& host);        // empty on error; errno is set
multinode::Descriptor connect_to(const std::string& host_port);  // empty on error; errno is set

}  // namespace emulated_gpu
