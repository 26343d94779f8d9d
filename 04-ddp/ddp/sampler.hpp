// sampler.hpp: which samples this rank trains on in a step.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace ddp {

// What becomes of an epoch's last batch where the samples do not divide by the global batch.
enum class Remainder {
  smaller,  // it has what is left; a rank's part of it may be empty. Every sample once in an epoch.
  drop,     // it is left out: the last samples of the epoch's order, other ones in every epoch
};

// Every epoch is a new permutation of all samples, made from seed and epoch alone, so that every rank has the same one
// without a message. A step takes the next `global_batch` of them, and rank r of P the r-th of P parts of those, which
// differ by one sample at most: the global batch is the same for every number of ranks. Models with batch normalisation
// need parts of equal size: use drop, and a global batch that P divides. (PyTorch's DistributedSampler pads or drops
// until all ranks have the same number of samples.)
class DistributedSampler {
 public:
  // Throws std::logic_error unless samples, global_batch and size are at least 1 and 0 <= rank < size, and for drop if
  // there are fewer samples than a global batch.
  DistributedSampler(std::size_t samples, std::size_t global_batch, int rank, int size, std::uint64_t seed,
                     Remainder remainder = Remainder::smaller);

  void set_epoch(std::uint32_t epoch);  // before the first step of each epoch
  std::size_t steps() const { return (order_.size() + global_batch_ - 1) / global_batch_; }  // an epoch
  std::span<const std::uint32_t> global_batch(std::size_t step) const;                       // of all ranks
  // Of this rank. Throws std::logic_error for a step before the last one: that is of another epoch.
  std::span<const std::uint32_t> local_batch(std::size_t step);

 private:
  std::size_t samples_, global_batch_;
  std::size_t rank_, size_;
  std::uint64_t seed_;
  Remainder remainder_;
  std::vector<std::uint32_t> order_;  // of the epoch; without dropped samples
  std::size_t last_ = 0;              // step that local_batch() was called for
};

// Part `rank` of `size` of `count` things: [begin, end). The parts differ by one at most.
struct Range {
  std::size_t begin, end;
};
constexpr Range part_of(std::size_t count, std::size_t rank, std::size_t size) {
  return {count * rank / size, count * (rank + 1) / size};
}

}  // namespace ddp
