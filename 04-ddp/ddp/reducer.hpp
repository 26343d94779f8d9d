// reducer.hpp: sums gradients over the ranks, in buckets, while the backward pass still computes the rest.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "hooks.hpp"
#include "parameters.hpp"

#include <multinode/communicator.hpp>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace ddp {

struct ReducerOptions {
  std::size_t first_bucket_bytes = std::size_t{1} << 20;  // small: the first reduction starts early
  std::size_t bucket_bytes = std::size_t{25} << 20;       // large: few calls, each near the link's full bandwidth
  std::size_t alignment = device_alignment;  // where a gradient begins in the storage: a multiple of so many bytes
  bool overlap = true;           // false, to compare with: reductions start when the backward pass has ended
  AllReduceHook wrap = nullptr;  // around the all-reduce, such as compressed(); null: none. Host memory only
};

// Multiplies gradients in a GPU's memory by a factor, on the stream that the communicator was given (set_stream), and
// does not wait for it.
template <class T>
using ScaleOnDevice = std::function<void(std::span<T> elements, T factor)>;

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
  std::size_t size = 0;  // of the storage, elements
};

// Parameters of counts[i] elements, from the last to the first, as a backward pass produces their gradients. A bucket
// is closed by the gradient that brings it to its size, so it may be larger than that, and never is empty. The plan
// depends on nothing else, so a training that is resumed adds in the same order.
BucketPlan plan_buckets(std::span<const std::size_t> counts, std::size_t element_bytes, const ReducerOptions& options);

// Data-parallel gradients of one model. It knows nothing of the model: only its parameters' names and sizes.
//
//   every step, on every rank:   begin(divisor), or accumulate() where the step has more passes to come
//                                backward pass: write gradient(i), or add to it where adds(), then mark_ready(i)
//                                wait()
//
// Calls in another order throw std::logic_error. After an exception in a pass there is no further one.
//
// Collective requirement: all ranks make the same Reducer (parameters, options) and the same calls of begin(),
// accumulate() and wait(). They may mark in different orders: buckets are always started in order of index. A rank
// without samples takes part with gradients of 0.
template <class T>
class Reducer {
 public:
  // `storage` has plan_buckets().size elements, and lives as long as the reducer: the gradients are computed in it,
  // reduced in it and read from it, without a copy. `scale` divides them; null: it is host memory. An empty all_reduce
  // reduces nothing: this rank is alone. Throws std::logic_error for a storage of another size, and for a hook on a
  // GPU's memory.
  Reducer(multinode::Communicator& communicator, std::span<const NamedBlock> parameters, std::span<T> storage,
          const ReducerOptions& options = {}, ScaleOnDevice<T> scale = nullptr);
  Reducer(AllReduce all_reduce, std::span<const NamedBlock> parameters, std::span<T> storage,
          const ReducerOptions& options = {}, ScaleOnDevice<T> scale = nullptr);
  // Waits for what is under way: it needs the storage.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  const BucketPlan& plan() const { return plan_; }
  // What trains, where, and how gradients travel: "669706 parameters in 2 buckets; 4 ranks, mpi, on the CPU".
  std::string summary(const multinode::Communicator& communicator) const;
  std::span<T> gradient(std::size_t parameter) const;

  // The backward pass that follows is the step's last. wait() divides by `divisor`: the number of samples in the global
  // batch, if gradients are sums over this rank's samples. That is right for any split of the batch, also an uneven
  // one.
  void begin(std::size_t divisor);
  // The backward pass that follows is one of several in the step: nothing is sent.
  void accumulate();
  bool adds() const { return adds_; }                   // a pass before it left gradients to add to
  bool reduced() const { return !in_pass_ && !adds_; }  // the gradients are those of all ranks

  // This pass's gradient of `parameter` is complete. One in host memory must be finite, see require_finite(): once a
  // NaN is in the sum, every rank has it, and its origin is unknown. When its bucket is complete, and all before it
  // have been started, the bucket's reduction starts. Throws std::logic_error for a gradient that was marked before in
  // this pass.
  void mark_ready(std::size_t parameter);

  // Ends the pass. After begin(): returns when all buckets are sums over the ranks and every element has been divided
  // by the divisor, once, after the sum. Throws std::logic_error that names a parameter that was not marked, and what
  // the communicator and the hook throw.
  void wait();

 private:
  std::span<T> bucket(std::size_t b) const { return storage_.subspan(plan_.buckets[b].offset, plan_.buckets[b].count); }
  void begin_pass(const char* call);
  void require_pass(const char* call) const;
  void start_complete_buckets();
  void wait_and_average(std::size_t b);

  AllReduce all_reduce_;
  ReducerOptions options_;
  std::vector<std::string> names_;
  std::vector<std::size_t> counts_;
  std::span<T> storage_;
  ScaleOnDevice<T> scale_;
  BucketPlan plan_;
  std::size_t divisor_ = 0;  // 0: this pass accumulates
  bool in_pass_ = false, adds_ = false;
  std::vector<bool> ready_;               // of each parameter: in this pass
  std::vector<std::size_t> missing_;      // of each bucket: gradients that are not ready
  std::vector<multinode::Work> started_;  // buckets 0 ... started_.size() - 1
};

}  // namespace ddp
