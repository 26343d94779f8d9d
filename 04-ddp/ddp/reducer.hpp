// reducer.hpp: sums gradients over the ranks, in buckets, while the backward pass still computes the rest.
#pragma once

#include "gradient_memory.hpp"
#include "parameters.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ddp {

// What gradients travel as. A 16-bit type halves the bytes; what it costs in precision stands in reducer.cpp.
enum class Compression { none, float16, bfloat16 };
Compression parse_compression(std::string_view name);  // of --compression, by these names; throws UsageError

struct ReducerOptions {
  std::size_t first_bucket_bytes = std::size_t{1} << 20;  // small: the first reduction starts early
  std::size_t bucket_bytes = std::size_t{25} << 20;       // large: few calls, each near the link's full bandwidth
  bool overlap = true;             // false, to compare with: reductions start when the backward pass has ended
  bool rebuild = true;             // after the first step, by the order in which its gradients were marked on rank 0
  bool unused_parameters = false;  // a backward pass may leave some out: host memory only
  Compression compression = Compression::none;  // host memory only
  bool check_finite = true;  // of this rank's gradients, before they are sent; not looked at in a GPU's memory
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

// Parameters of counts[i] elements, taken in `order`. A bucket is closed by the gradient that brings it to its size, so
// it may be larger than that, and never is empty.
BucketPlan plan_buckets(std::span<const std::size_t> counts, std::span<const std::size_t> order,
                        std::size_t element_bytes, const ReducerOptions& options);

// What a reducer asks of the other ranks.
struct Peers {
  // Starts to sum a block over all ranks, in place. `name` ("all_reduce of bucket 3") is for the watchdog, and outlives
  // everything. An empty function reduces nothing: this rank is alone.
  std::function<multinode::Work(multinode::Block block, const char* name)> all_reduce;
  // Gives every rank rank 0's text. Called once, by wait(), when nothing else is under way.
  std::function<std::string(const std::string& text)> from_rank_0;
};

// Data-parallel gradients of one model. It knows nothing of the model: only its parameters' names and sizes.
//
//   every step, on every rank:   begin(divisor), or accumulate() where the step has more passes to come
//                                backward pass: write gradient(i), or add to it where adds(), then mark_ready(i)
//                                wait()
//
// Collective requirement: all ranks make the same Reducer (parameters, options) and the same calls of begin(),
// accumulate() and wait(). They may mark in different orders: buckets are always started in order of index. A rank
// without samples takes part with gradients of 0.
template <class T>
class Reducer {
 public:
  // `storage` holds one element for each of the parameters', and lives as long as the reducer: the gradients are
  // computed in it, reduced in it and read from it, without a copy (but for compression). `memory` does the rest of the
  // work there; null: it is host memory. Throws std::logic_error for a storage of another size, and for options that
  // `memory` does not have.
  Reducer(multinode::World& world, multinode::Communicator& communicator, std::span<const NamedBlock> parameters,
          std::span<T> storage, const ReducerOptions& options = {},
          std::unique_ptr<GradientMemory<T>> memory = nullptr);
  Reducer(Peers peers, std::span<const NamedBlock> parameters, std::span<T> storage, const ReducerOptions& options = {},
          std::unique_ptr<GradientMemory<T>> memory = nullptr);
  // Waits for what is under way: it needs the storage.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  const BucketPlan& plan() const { return plan_; }
  std::span<T> storage() const { return storage_; }
  std::span<T> gradient(std::size_t parameter) const;

  // Called by wait() when the gradients lie elsewhere in the storage than before (once, after the first step): a model
  // has to ask for gradient(i) again. Buckets are rebuilt only if there is such a function.
  void set_relocated(std::function<void()> relocated) { relocated_ = std::move(relocated); }

  // The backward pass that follows is the step's last. wait() divides by `divisor`: the number of samples in the global
  // batch, if gradients are sums over this rank's samples. That is right for any split of the batch, also an uneven
  // one.
  void begin(std::size_t divisor);
  // The backward pass that follows is one of several in the step: nothing is sent.
  void accumulate();
  bool adds() const { return adds_; }  // a pass before it left gradients to add to

  // This pass's gradient of `parameter` is complete. Once its bucket is, and all before it have been started, the
  // bucket's reduction starts. Throws std::logic_error for a gradient that was marked before in this pass, and
  // std::runtime_error, naming parameter and element, for one that is not finite.
  void mark_ready(std::size_t parameter);

  // Ends the pass. After begin(): returns when all buckets are sums over the ranks and every element has been divided
  // by the divisor, once, after the sum. Parameters that no pass of the step marked on this rank count as 0 if there
  // may be unused ones, else it throws std::logic_error that names one. Throws std::runtime_error for gradients that
  // are not finite, or whose sum float16 cannot hold, and what the communicator throws.
  void wait();

  // After wait(): whether any rank marked `parameter` in this step. Where not, its gradient is 0, and an optimizer
  // leaves it alone: momentum and weight decay would move it. Always true without unused_parameters.
  bool used(std::size_t parameter) const { return !options_.unused_parameters || used_.at(parameter) > 0; }

 private:
  std::span<T> bucket(std::size_t b) const { return storage_.subspan(plan_.buckets[b].offset, plan_.buckets[b].count); }
  std::string element_text(std::size_t at) const;
  void start_complete_buckets();
  void start(std::size_t b);
  void finish(std::size_t b);
  void rebuild();

  Peers peers_;
  ReducerOptions options_;
  std::vector<std::string> names_;
  std::vector<std::size_t> counts_;
  std::span<T> storage_;
  std::unique_ptr<GradientMemory<T>> memory_;
  BucketPlan plan_;
  std::function<void()> relocated_;
  std::vector<std::size_t> order_;  // in which this pass marked, until buckets are rebuilt
  std::size_t divisor_ = 0;         // 0: this pass accumulates
  bool adds_ = false;
  std::vector<bool> ready_;                // of each parameter: in this pass
  std::vector<std::int32_t> used_;         // of each parameter: in this step; after wait() the number of ranks
  std::vector<std::size_t> missing_;       // of each bucket: gradients that are not ready
  std::vector<std::uint16_t> compressed_;  // the storage as it travels
  std::vector<multinode::Work> started_;   // buckets 0 ... started_.size() - 1
};

// What trains, and where: "669706 parameters in 2 buckets; 4 ranks, mpi, on the CPU".
template <class T>
std::string summary(const Reducer<T>& reducer, const multinode::World& world,
                    const multinode::Communicator& communicator);

}  // namespace ddp
