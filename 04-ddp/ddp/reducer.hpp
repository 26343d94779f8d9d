// reducer.hpp: sums gradients over the ranks, in buckets, while the backward pass still computes the rest.
#pragma once

#include <multinode/communicator.hpp>

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

namespace ddp {

struct ReducerOptions {
  std::size_t first_bucket_bytes = std::size_t{1} << 20;  // small: the first reduction starts early
  std::size_t bucket_bytes = std::size_t{25} << 20;       // large: few calls, each near the link's full bandwidth
};

// Where each gradient lies in the storage, and which of them are reduced together.
struct BucketPlan {
  struct Bucket {
    std::size_t offset = 0;      // in the storage, elements
    std::size_t count = 0;       // elements
    std::size_t parameters = 0;  // how many gradients it holds
  };
  std::vector<std::size_t> offset;  // of each parameter's gradient in the storage, elements
  std::vector<std::size_t> bucket;  // of each parameter: an index into buckets
  std::vector<Bucket> buckets;
};

// Parameters of counts[i] elements are taken last to first, the order in which a backward pass produces gradients. A
// bucket is closed by the gradient that brings it to its size, so it may be larger than that, and never is empty.
BucketPlan plan_buckets(std::span<const std::size_t> counts, std::size_t element_bytes, const ReducerOptions& options);

// Data-parallel gradients of one model. It knows nothing of the model: only the number of elements of each gradient.
//
//   every step, on every rank:   write gradient(i), mark_ready(i)   for each i, as the backward pass gets to it
//                                wait(samples)
//
// Collective requirement: all ranks make the same Reducer (counts, element type, options) and the same number of steps.
// They may mark in different orders: buckets are always started in order of index. A rank without samples takes part
// with gradients of 0.
template <class T>
class Reducer {
 public:
  // Starts to sum a block over all ranks, in place.
  using AllReduce = std::function<multinode::Work(std::span<T>)>;

  // `storage` holds one element for each of all counts, and lives as long as the reducer: the gradients are computed in
  // it, reduced in it and read from it, without a copy. Host memory, or the device's with an nccl communicator.
  Reducer(multinode::Communicator& communicator, std::span<const std::size_t> counts, std::span<T> storage,
          const ReducerOptions& options = {});

  // With a function in the communicator's place; an empty one reduces nothing: this rank is alone.
  Reducer(AllReduce all_reduce, std::span<const std::size_t> counts, std::span<T> storage,
          const ReducerOptions& options = {});

  const BucketPlan& plan() const { return plan_; }
  std::span<T> storage() const { return storage_; }
  std::span<T> gradient(std::size_t parameter) const;  // counts[parameter] elements

  // This step's gradient of `parameter` is complete. Once its bucket is, and all before it have been started, the
  // bucket's reduction starts. Throws std::logic_error for a gradient that was marked before in this step.
  void mark_ready(std::size_t parameter);

  // Ends the step: returns when all buckets are sums over the ranks and every element has been divided by `divisor`,
  // once, after the sum. The number of samples in the global batch, if gradients are sums over this rank's samples:
  // that is right for any split of the batch, also an uneven one. Throws std::logic_error, naming the parameter, if one
  // was not marked, and what the communicator throws.
  void wait(std::size_t divisor);

  // How elements are multiplied by a factor, for storage on a device.
  using Scale = std::function<void(std::span<T>, T)>;
  void set_scale(Scale scale) { scale_ = std::move(scale); }

 private:
  AllReduce all_reduce_;
  std::vector<std::size_t> counts_;
  std::span<T> storage_;
  BucketPlan plan_;
  Scale scale_;
  std::vector<bool> ready_;               // of each parameter
  std::vector<std::size_t> missing_;      // of each bucket: gradients that are not ready
  std::vector<multinode::Work> started_;  // buckets 0 ... started_.size() - 1
};

}  // namespace ddp
