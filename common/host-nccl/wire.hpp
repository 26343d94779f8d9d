// wire.hpp: the messages between the ranks of a communicator and its hub, over TCP.
#pragma once

#include <multinode/data_type.hpp>
#include <multinode/descriptor.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

namespace host_nccl {

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
  recv
};
const char* name_of(Op op);  // "ncclAllReduce"
inline bool is_collective(Op op) { return op != Op::send && op != Op::recv; }
inline bool has_root(Op op) { return op == Op::reduce || op == Op::broadcast || op == Op::gather || op == Op::scatter; }
inline bool reduces(Op op) { return op == Op::all_reduce || op == Op::reduce || op == Op::reduce_scatter; }

// A call of one rank.
struct Post {
  Op op{};
  multinode::DataType type{};
  multinode::Reduction reduction{};
  std::int32_t peer = 0;     // of send and recv, or the root
  std::uint64_t count = 0;   // elements of a block, like NCCL's count
  std::uint64_t number = 0;  // among the collectives of this communicator, or the messages between two ranks
  bool multiplied = false;   // each rank's input, by `factor`, before the sum
  double factor = 1;

  std::size_t bytes() const { return count * multinode::size_of(type); }
};
// The bytes of the send buffer and of the receive buffer of `rank` of `size`.
std::size_t bytes_in(const Post& post, int rank, int size);
std::size_t bytes_out(const Post& post, int rank, int size);
std::string text_of(const Post& post);  // "ncclSend(100 x int32, to rank 1)"

enum class Kind : std::uint32_t { hello, welcome, post, done, failed, goodbye, aborted };
struct Frame {
  Kind kind{};
  std::int32_t code = 0;      // failed: an ncclResult_t
  std::uint64_t id = 0;       // of a post; done repeats it
  std::uint64_t payload = 0;  // bytes that follow
  Post post{};
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
  void shut_down();  // makes the calls of both sides return

 private:
  multinode::Descriptor fd_;
  std::mutex sending_;
};

// "127.0.0.1:12345"
std::string address_of(int listening_fd, const std::string& host);
// The IPv4 address of the interface that NCCL_SOCKET_IFNAME selects, or loopback if it is not set; "" if none matches.
std::string own_host();
multinode::Descriptor listen_on(const std::string& host);        // empty on error; errno is set
multinode::Descriptor connect_to(const std::string& host_port);  // empty on error; errno is set

}  // namespace host_nccl
