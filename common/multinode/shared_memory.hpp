// shared_memory.hpp: memory that the ranks of one host reduce in directly.
#pragma once

#include <multinode/communicator.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace multinode {

// One block of memory per rank. If all ranks are on one host, each rank maps the blocks of all, and all_reduce() works
// in them: nothing is sent and nothing is copied. The memory has no name in a file system, so nothing is left when the
// processes are killed.
class SharedMemory {
 public:
  // Collective. `bytes` per rank, zeroed. If the ranks cannot share memory (several hosts, containers that hide
  // processes from each other, limits), or if `share` is false, it is private memory on every rank. Throws
  // std::system_error if there is none either.
  SharedMemory(World& world, std::size_t bytes, bool share);
  // For ranks that are threads: `memory` has total(size, bytes) bytes, zeroed, at the start of a page, and outlives
  // this.
  SharedMemory(std::byte* memory, int rank, int size, std::size_t bytes);
  static std::size_t total(int size, std::size_t bytes);
  ~SharedMemory();
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  std::span<std::byte> mine() const { return {block(rank_), bytes_}; }
  // Whether all_reduce() can reduce `block`: it lies in mine(), and the ranks share it.
  bool holds(const Block& block) const {
    const auto* data = static_cast<const std::byte*>(block.data);
    return header_ && data >= mine().data() && data + block.bytes() <= mine().data() + bytes_;
  }
  // Collective, with the same place in mine() on all ranks. Each rank reduces one part, in order of rank, multiplies it
  // by `factor`, and writes it to all blocks: so all ranks have the same bits. `factor` is for floating-point types.
  void all_reduce(const Block& block, Reduction reduction, double factor);

 private:
  struct Header;

  std::byte* block(int rank) const { return blocks_ + static_cast<std::size_t>(rank) * stride_; }
  void use(std::byte* memory);
  void map(int fd, std::size_t bytes);
  void unmap() noexcept;
  bool join(World& world);
  void meet();

  int rank_, size_;
  std::size_t bytes_, stride_ = 0, mapped_ = 0;
  std::byte* mapping_ = nullptr;
  std::byte* blocks_ = nullptr;
  Header* header_ = nullptr;  // null: private memory
  bool crowded_ = false;      // more ranks than cores: waiting ranks do not spin
};

}  // namespace multinode
