#include "reducer.hpp"

#include <numeric>
#include <stdexcept>
#include <string>
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
    offset += counts[i];
    bucket.count += counts[i];
    ++bucket.parameters;
    open = bucket.count * element_bytes < (plan.bucket[i] == 0 ? options.first_bucket_bytes : options.bucket_bytes);
  }
  return plan;
}

template <class T>
Reducer<T>::Reducer(AllReduce all_reduce, std::span<const std::size_t> counts, std::span<T> storage,
                    const ReducerOptions& options)
    : all_reduce_(std::move(all_reduce)),
      counts_(counts.begin(), counts.end()),
      storage_(storage),
      plan_(plan_buckets(counts, sizeof(T), options)),
      scale_([](std::span<T> elements, T factor) {
        for (T& element : elements) element *= factor;
      }),
      ready_(counts.size(), false) {
  const std::size_t total = std::accumulate(counts.begin(), counts.end(), std::size_t{0});
  if (storage.size() != total)
    throw std::logic_error("Reducer: storage of " + std::to_string(storage.size()) + " elements for gradients of " +
                           std::to_string(total));
  for (const BucketPlan::Bucket& bucket : plan_.buckets) missing_.push_back(bucket.parameters);
}

template <class T>
Reducer<T>::Reducer(multinode::Communicator& communicator, std::span<const std::size_t> counts, std::span<T> storage,
                    const ReducerOptions& options)
    : Reducer(
          communicator.size() == 1
              ? AllReduce()
              : [&communicator](std::span<T> block) { return communicator.start_all_reduce(block); },
          counts, storage, options) {}

template <class T>
std::span<T> Reducer<T>::gradient(std::size_t parameter) const {
  return storage_.subspan(plan_.offset.at(parameter), counts_[parameter]);
}

template <class T>
void Reducer<T>::mark_ready(std::size_t parameter) {
  if (ready_.at(parameter))
    throw std::logic_error("Reducer: gradient " + std::to_string(parameter) + " was marked ready twice in one step");
  ready_[parameter] = true;
  --missing_[plan_.bucket[parameter]];
  // In order of index, whatever the order of completion: a collective that ranks call in different orders never ends.
  while (started_.size() < missing_.size() && missing_[started_.size()] == 0) {
    const BucketPlan::Bucket& bucket = plan_.buckets[started_.size()];
    started_.push_back(all_reduce_ ? all_reduce_(storage_.subspan(bucket.offset, bucket.count)) : multinode::Work());
  }
}

template <class T>
void Reducer<T>::wait(std::size_t divisor) {
  for (std::size_t i = 0; i < ready_.size(); ++i)
    if (!ready_[i]) throw std::logic_error("Reducer: gradient " + std::to_string(i) + " was not marked ready");
  for (multinode::Work& work : started_) work.wait();
  scale_(storage_, T(1) / static_cast<T>(divisor));
  started_.clear();
  ready_.assign(ready_.size(), false);
  for (std::size_t b = 0; b < missing_.size(); ++b) missing_[b] = plan_.buckets[b].parameters;
}

template class Reducer<float>;
template class Reducer<double>;

}  // namespace ddp
