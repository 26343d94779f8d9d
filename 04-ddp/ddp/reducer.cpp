// SPDX-License-Identifier: Apache-2.0
#include "reducer.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace ddp {

BucketPlan plan_buckets(std::span<const std::size_t> counts, std::size_t element_bytes, const ReducerOptions& options) {
  BucketPlan plan;
  plan.offset.resize(counts.size());
  plan.bucket.resize(counts.size());
  std::size_t offset = 0;
  bool open = false;
  for (std::size_t i = counts.size(); i-- > 0;) {
    if (!open) plan.buckets.push_back({offset, 0, 0});
    BucketPlan::Bucket& bucket = plan.buckets.back();
    plan.offset[i] = offset;
    plan.bucket[i] = plan.buckets.size() - 1;
    const std::size_t count = padded(counts[i], element_bytes, options.alignment);
    offset += count;
    bucket.count += count;
    ++bucket.parameters;
    open = bucket.count * element_bytes < (plan.bucket[i] == 0 ? options.first_bucket_bytes : options.bucket_bytes);
  }
  plan.size = offset;
  return plan;
}

namespace {

AllReduce all_reduce_of(multinode::Communicator& communicator, const AllReduceHook& wrap) {
  if (communicator.size() == 1) return {};
  const AllReduce plain = [&communicator](multinode::Block block, std::size_t, const char* name) {
    return communicator.start_all_reduce(block, multinode::Reduction::sum, name);
  };
  return wrap ? wrap(plain) : plain;
}

// Outlives every watchdog.
const char* name_of_bucket(std::size_t b) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < 1000; ++i) all.push_back("all_reduce of bucket " + std::to_string(i));
    return all;
  }();
  return b < names.size() ? names[b].c_str() : "all_reduce of a bucket beyond the first 1000";
}

}  // namespace

template <class T>
Reducer<T>::Reducer(AllReduce all_reduce, std::span<const NamedBlock> parameters, std::span<T> storage,
                    const ReducerOptions& options, ScaleOnDevice<T> scale)
    : all_reduce_(std::move(all_reduce)),
      options_(options),
      storage_(storage),
      scale_(std::move(scale)),
      ready_(parameters.size(), false) {
  for (const NamedBlock& parameter : parameters) {
    names_.push_back(parameter.name);
    counts_.push_back(parameter.block.count);
  }
  if (scale_ && options.wrap) throw std::logic_error("Reducer: a hook is for gradients in host memory");
  plan_ = plan_buckets(counts_, sizeof(T), options_);
  if (storage.size() != plan_.size)
    throw std::logic_error("Reducer: storage of " + std::to_string(storage.size()) + " elements for gradients of " +
                           std::to_string(plan_.size));
}

template <class T>
Reducer<T>::Reducer(multinode::Communicator& communicator, std::span<const NamedBlock> parameters, std::span<T> storage,
                    const ReducerOptions& options, ScaleOnDevice<T> scale)
    : Reducer(all_reduce_of(communicator, options.wrap), parameters, storage, options, std::move(scale)) {}

template <class T>
Reducer<T>::~Reducer() {
  for (multinode::Work& work : started_) {
    try {
      work.wait();
    } catch (const std::exception&) {  // reported by the call that waits for it, or after what is being unwound for
    }
  }
}

template <class T>
std::span<T> Reducer<T>::gradient(std::size_t parameter) const {
  return storage_.subspan(plan_.offset.at(parameter), counts_[parameter]);
}

template <class T>
void Reducer<T>::begin(std::size_t divisor) {
  if (divisor == 0) throw std::logic_error("Reducer: a divisor of 0");
  begin_pass("begin");
  divisor_ = divisor;
}

template <class T>
void Reducer<T>::accumulate() {
  begin_pass("accumulate");
  divisor_ = 0;
}

template <class T>
void Reducer<T>::begin_pass(const char* call) {
  if (in_pass_) throw std::logic_error(std::string("Reducer::") + call + "() before the wait() of the pass before");
  in_pass_ = true;
  ready_.assign(ready_.size(), false);
  missing_.clear();
  for (const BucketPlan::Bucket& bucket : plan_.buckets) missing_.push_back(bucket.parameters);
}

template <class T>
void Reducer<T>::require_pass(const char* call) const {
  if (!in_pass_) throw std::logic_error(std::string("Reducer::") + call + "() before begin() or accumulate()");
}

template <class T>
void Reducer<T>::mark_ready(std::size_t parameter) {
  require_pass("mark_ready");
  if (ready_.at(parameter))
    throw std::logic_error("Reducer: the gradient of '" + names_[parameter] + "' was marked ready twice in one pass");
  ready_[parameter] = true;
  --missing_[plan_.bucket[parameter]];
  if (!divisor_) return;
  if (!scale_) require_finite("the gradient of '" + names_[parameter] + "'", gradient(parameter));
  if (options_.overlap) start_complete_buckets();
}

// In order of index, whatever the order of completion: a collective that ranks call in different orders never ends.
template <class T>
void Reducer<T>::start_complete_buckets() {
  for (std::size_t b = started_.size(); b < missing_.size() && missing_[b] == 0; ++b)
    started_.push_back(all_reduce_ ? all_reduce_(bucket(b), divisor_, name_of_bucket(b)) : multinode::Work());
}

template <class T>
void Reducer<T>::wait_and_average(std::size_t b) {
  started_[b].wait();
  if (divisor_ == 1) return;
  const T factor = T(1) / static_cast<T>(divisor_);
  if (scale_) return scale_(bucket(b), factor);
  for (T& element : bucket(b)) element *= factor;
}

template <class T>
void Reducer<T>::wait() {
  require_pass("wait");
  for (std::size_t i = 0; i < ready_.size(); ++i)
    if (!ready_[i])
      throw std::logic_error("Reducer: the gradient of '" + names_[i] + "' was not marked ready in this pass");
  adds_ = divisor_ == 0;
  if (!adds_) start_complete_buckets();
  for (std::size_t b = 0; b < started_.size(); ++b) wait_and_average(b);
  started_.clear();
  in_pass_ = false;
}

template <class T>
std::string Reducer<T>::summary(const multinode::Communicator& communicator) const {
  const auto several = [](std::size_t count, const std::string& what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  const auto backend = communicator.backend();
  std::string text = several(std::accumulate(counts_.begin(), counts_.end(), std::size_t{0}), "parameter");
  if (communicator.size() > 1) text += " in " + several(plan_.buckets.size(), "bucket");
  text += "; " + several(static_cast<std::size_t>(communicator.size()), "rank") + ", " + std::string(name_of(backend));
  return text + (backend == multinode::Backend::nccl ? ", on GPUs" : ", on the CPU");
}

template class Reducer<float>;
template class Reducer<double>;

}  // namespace ddp
