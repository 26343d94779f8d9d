#include "reducer.hpp"

#include <numeric>
#include <stdexcept>
#include <utility>

namespace ddp {

BucketPlan plan_buckets(std::span<const std::size_t> counts, std::span<const std::size_t> order,
                        std::size_t element_bytes, const ReducerOptions& options) {
  BucketPlan plan;
  plan.offset.resize(counts.size());
  plan.bucket.resize(counts.size());
  std::size_t offset = 0;
  bool open = false;
  for (const std::size_t i : order) {
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

namespace {

Peers peers_of(multinode::World& world, multinode::Communicator& communicator) {
  if (communicator.size() == 1) return {};
  return {[&communicator](multinode::Block block, const char*) { return communicator.start_all_reduce(block); },
          [&world](const std::string& text) { return world.gather("order of gradients", text)[0]; }};
}

}  // namespace

template <class T>
Reducer<T>::Reducer(Peers peers, std::span<const NamedBlock> parameters, std::span<T> storage,
                    const ReducerOptions& options)
    : peers_(std::move(peers)),
      options_(options),
      storage_(storage),
      scale_([](std::span<T> elements, T factor) {
        for (T& element : elements) element *= factor;
      }),
      ready_(parameters.size(), false) {
  std::vector<std::size_t> order;  // last to first, as a backward pass produces gradients
  for (const NamedBlock& parameter : parameters) {
    names_.push_back(parameter.name);
    counts_.push_back(parameter.block.count);
    order.insert(order.begin(), order.size());
  }
  plan_ = plan_buckets(counts_, order, sizeof(T), options);
  const std::size_t total = std::accumulate(counts_.begin(), counts_.end(), std::size_t{0});
  if (storage.size() != total)
    throw std::logic_error("Reducer: storage of " + std::to_string(storage.size()) + " elements for gradients of " +
                           std::to_string(total));
}

template <class T>
Reducer<T>::Reducer(multinode::World& world, multinode::Communicator& communicator,
                    std::span<const NamedBlock> parameters, std::span<T> storage, const ReducerOptions& options)
    : Reducer(peers_of(world, communicator), parameters, storage, options) {}

template <class T>
std::span<T> Reducer<T>::gradient(std::size_t parameter) const {
  return storage_.subspan(plan_.offset.at(parameter), counts_[parameter]);
}

template <class T>
void Reducer<T>::begin(std::size_t divisor) {
  if (divisor == 0) throw std::logic_error("Reducer: a divisor of 0");
  divisor_ = divisor;
  ready_.assign(ready_.size(), false);
  missing_.clear();
  for (const BucketPlan::Bucket& bucket : plan_.buckets) missing_.push_back(bucket.parameters);
}

template <class T>
void Reducer<T>::accumulate() {
  begin(1);
  divisor_ = 0;
}

template <class T>
void Reducer<T>::mark_ready(std::size_t parameter) {
  if (ready_.at(parameter))
    throw std::logic_error("Reducer: the gradient of '" + names_[parameter] + "' was marked ready twice in one pass");
  ready_[parameter] = true;
  --missing_.at(plan_.bucket[parameter]);
  if (divisor_ && options_.overlap) start_complete_buckets();
}

// In order of index, whatever the order of completion: a collective that ranks call in different orders never ends.
template <class T>
void Reducer<T>::start_complete_buckets() {
  while (started_.size() < missing_.size() && missing_[started_.size()] == 0) {
    const BucketPlan::Bucket& bucket = plan_.buckets[started_.size()];
    started_.push_back(peers_.all_reduce
                           ? peers_.all_reduce(storage_.subspan(bucket.offset, bucket.count), "all_reduce")
                           : multinode::Work());
  }
}

template <class T>
void Reducer<T>::wait() {
  for (std::size_t i = 0; i < ready_.size(); ++i)
    if (!ready_[i]) throw std::logic_error("Reducer: the gradient of '" + names_[i] + "' was not marked ready");
  adds_ = divisor_ == 0;
  if (adds_) return;
  start_complete_buckets();
  for (multinode::Work& work : started_) work.wait();
  scale_(storage_, T(1) / static_cast<T>(divisor_));
  started_.clear();
}

template class Reducer<float>;
template class Reducer<double>;

}  // namespace ddp
