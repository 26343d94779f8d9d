// wire.hpp: the messages between the ranks of a communicator and its hub, over TCP.
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/communicator/data_type.hpp>

#include <nccl.h>
#include <nlohmann/json.hpp>

#include <mutex>

namespace emulated_gpu {

// Thrown by a call that fails.
struct NcclError {
  ncclResult_t code = ncclSuccess;
  std::string text;
};

enum class Op { all_reduce, reduce, broadcast, reduce_scatter, all_gather, all_to_all, gather, scatter, send, recv };
const char* name_of(Op op);  // "ncclAllReduce"
inline bool is_collective(Op op) { return op != Op::send && op != Op::recv; }
// Those that NCCL makes of sends and receives, each with its own connections; the others use the ring.
inline bool is_of_messages(Op op) { return op == Op::all_to_all || op == Op::gather || op == Op::scatter; }
inline bool has_root(Op op) { return op == Op::reduce || op == Op::broadcast || op == Op::gather || op == Op::scatter; }
inline bool reduces(Op op) { return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter; }

// A call of one rank. It travels in pieces: each has the same part of every block.
struct CallMessage {
  Op op{};
  multinode::DataType type{};
  multinode::Reduction reduction{};
  std::int32_t peer = 0;     // of send and recv, or the root
  std::uint64_t count = 0;   // elements of a block, like NCCL's count
  std::uint64_t number = 0;  // among the collectives of this communicator, or the messages between two ranks
  bool connects = false;     // sets up the connection that this call needs, before the call: no data
  std::uint64_t begin = 0;   // of the piece, in elements
  std::uint64_t length = 0;

  std::size_t bytes(std::uint64_t elements) const { return elements * multinode::size_of(type); }
  // The place in a buffer of byte `at` of a piece, which begins a block.
  std::size_t place(std::size_t at) const { return at / bytes(length) * bytes(count) + bytes(begin); }
};
// The blocks in the send buffer and in the receive buffer of `rank` of `size`.
std::size_t blocks_in(const CallMessage& post, int rank, int size);
std::size_t blocks_out(const CallMessage& post, int rank, int size);
std::string text_of(const CallMessage& post);  // "ncclSend(100 x int32, to rank 1)"

enum class Kind : std::uint32_t { hello, welcome, post, done, failed, goodbye, aborted };
struct Frame {
  Kind kind{};
  std::int32_t code = 0;      // failed: an ncclResult_t
  std::uint64_t id = 0;       // of a post; done repeats it
  std::uint64_t payload = 0;  // bytes that follow
  CallMessage post{};
};

// What a rank says about itself when it joins, as JSON.
struct Hello {
  std::string id, call, who, process, machine;
  int rank = 0, size = 0, device = 0;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Hello, id, call, who, process, machine, rank, size, device)

class Connection {
 public:
  explicit Connection(multinode::Descriptor fd);

  // Return false if the connection is broken.
  bool send(Frame frame, const void* payload = nullptr, std::size_t bytes = 0);
  bool send(Kind kind, const std::string& text, std::int32_t code = 0);
  bool receive(Frame& frame) { return receive(&frame, sizeof frame); }
  bool receive(void* to, std::size_t bytes);
  bool receive(std::string& text, std::size_t bytes) {
    text.resize(bytes);
    return receive(text.data(), bytes);
  }
  void shut_down();  // makes the calls of both sides return

 private:
  multinode::Descriptor fd_;
  std::mutex sending_;
};

// What NCCL takes for the name of this machine: NCCL_HOSTID, or the host's name.
std::string own_machine();
// Listens on the interface that NCCL_SOCKET_IFNAME names, or on loopback if it is not set, and sets `host_port`. Throws
// NcclError.
multinode::Descriptor listen(std::string& host_port);
multinode::Descriptor connect_to(const std::string& host_port);  // empty on error; errno is set

}  // namespace emulated_gpu
