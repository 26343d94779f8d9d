// shared_memory.hpp: memory that the ranks of one host reduce in directly.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator/block.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

namespace multinode {

class World;

// One block of memory per rank. If all ranks are on one host, each rank maps the blocks of all, and the collectives
// work in them: nothing is sent. The memory has no name in a file system, so nothing is left when the processes are
// killed.
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

  std::span<std::byte> own_block() const { return {block(rank_), bytes_}; }
  // Whether the collectives can work on `block`: it lies in own_block(), and the ranks share it.
  bool holds(const ConstBlock& block) const {
    const auto* data = static_cast<const std::byte*>(block.data);
    return header_ && data >= own_block().data() && data + block.bytes() <= own_block().data() + bytes_;
  }
  // Collective, with the same place in own_block() on all ranks. Each rank reduces one part, in order of rank,
  // multiplies it by `factor`, and writes it to all blocks: so all ranks have the same bits. `factor` is for
  // floating-point types.
  void all_reduce(const Block& block, Reduction reduction, double factor);
  // Collective, likewise. `part` is this rank's part; the parts of all ranks have the same size and lie one behind the
  // other. Replaces it by its reduction over all ranks' blocks. The other parts of this rank's block do not change.
  void reduce_scatter(const Block& part, Reduction reduction, double factor);
  // Collective, likewise. `block` is all parts: each rank copies part r from rank r's block into its own, for all r.
  void all_gather(const Block& block);

 private:
  struct Header;

  std::byte* block(int rank) const { return blocks_ + static_cast<std::size_t>(rank) * stride_; }
  void use(std::byte* memory);
  void map(int fd, std::size_t bytes);
  void unmap() noexcept;
  bool join(World& world);
  void meet();
  std::size_t begin(const Block& block, const char* operation);
  void reduce(const Block& block, std::size_t offset, std::size_t first, std::size_t end, Reduction reduction,
              double factor, bool for_all);

  int rank_, size_;
  std::size_t bytes_, stride_ = 0, mapped_ = 0;
  std::byte* mapping_ = nullptr;
  std::byte* blocks_ = nullptr;
  Header* header_ = nullptr;  // null: private memory
  bool crowded_ = false;      // more ranks than cores: waiting ranks do not spin
};

}  // namespace multinode
