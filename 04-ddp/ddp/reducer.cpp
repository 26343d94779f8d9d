#include "reducer.hpp"

#include <multinode/check.hpp>

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace ddp {

Compression parse_compression(std::string_view name) {
  if (name == "none") return Compression::none;
  if (name == "float16") return Compression::float16;
  if (name == "bfloat16") return Compression::bfloat16;
  throw multinode::UsageError("--compression must be none, float16 or bfloat16, not '" + std::string(name) + "'");
}

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
  return {[&communicator](multinode::Block block, const char* name) {
            return communicator.start_all_reduce(block, multinode::Reduction::sum, name);
          },
          [&world](const std::string& text) {
            return world.gather("order of gradients", world.rank() == 0 ? text : "")[0];
          }};
}

template <class T>
class HostMemory : public GradientMemory<T> {
 public:
  void scale(std::span<T> elements, T factor) override {
    for (T& element : elements) element *= factor;
  }
  void move(std::span<T> storage, std::span<const typename GradientMemory<T>::Move> moves) override {
    const std::vector<T> before(storage.begin(), storage.end());
    for (const auto& [from, to, count] : moves) std::copy_n(before.data() + from, count, storage.data() + to);
  }
};

// Outlives every watchdog.
const char* name_of_bucket(std::size_t b) {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (int i = 0; i < 1000; ++i) all.push_back("all_reduce of bucket " + std::to_string(i));
    return all;
  }();
  return b < names.size() ? names[b].c_str() : "all_reduce of a bucket beyond the first 1000";
}

// 0 times what is finite is 0, times anything else NaN. Several sums, so that they are computed side by side.
template <class T>
bool all_finite(std::span<const T> elements) {
  T sums[32] = {};
  std::size_t i = 0;
  for (; i + 32 <= elements.size(); i += 32)
    for (std::size_t j = 0; j < 32; ++j) sums[j] += elements[i + j] * T(0);
  T sum = 0;
  for (const T one : sums) sum += one;
  for (; i < elements.size(); ++i) sum += elements[i] * T(0);
  return sum == T(0);
}

// Compression. What travels is x = s g, where g is a rank's gradient, s = 2^-k, and 2^k the smallest power of two that
// is not below the divisor d. So g is not rounded by it, and the sum over the ranks is between half of the mean
// gradient and the mean gradient itself: batches of any size overflow float16 (largest: 65504) only where the mean of
// the ranks' absolute gradients does, which is found and said after the reduction.
//
// The bound. Let u be the unit roundoff of the type (2^-11 for float16, 2^-8 for bfloat16) and e half of the distance
// of its smallest numbers (2^-25, 2^-134). Each x is rounded once, by u |x| or, if it is small, by e; a sum of two is
// computed in float and rounded by u, and not at all where it is small (Higham, Accuracy and Stability of Numerical
// Algorithms, 2nd ed., problem 2.19). P ranks are P - 1 additions, in any order, so the sum is wrong by at most
//   ((1 + u)^P - 1) sum |x| + P e (1 + u)^(P - 1),
// and the mean gradient, which is the sum times 1 / (s d) < 2, by
//   P u (1 + P u) mean|g| + 2 P e (1 + P u), for P u < 1, where mean|g| = sum over the ranks of |g|, divided by d,
// plus what the rounding of T to float (below u 2^-12) and of the last product adds, which is below 1 % of it.
constexpr std::size_t piece = 1024;  // elements that stay in the first cache between two conversions

template <class Short, class T>
void compress(std::span<const T> from, T factor, Short* to) {
  float floats[piece];
  for (; !from.empty(); from = from.subspan(std::min(piece, from.size()))) {
    const std::size_t count = std::min(piece, from.size());
    for (std::size_t i = 0; i < count; ++i) floats[i] = static_cast<float>(from[i] * factor);
    multinode::convert(std::span<const float>(floats, count), {to, count});
    to += count;
  }
}

// Returns whether all of it is finite.
template <class Short, class T>
bool expand(const Short* from, T factor, std::span<T> to) {
  float floats[piece];
  bool finite = true;
  for (; !to.empty(); to = to.subspan(std::min(piece, to.size()))) {
    const std::size_t count = std::min(piece, to.size());
    multinode::convert(std::span<const Short>(from, count), {floats, count});
    finite = finite && all_finite(std::span<const float>(floats, count));
    for (std::size_t i = 0; i < count; ++i) to[i] = static_cast<T>(floats[i]) * factor;
    from += count;
  }
  return finite;
}

double compression_factor(std::size_t divisor) { return std::ldexp(1, -static_cast<int>(std::bit_width(divisor - 1))); }

}  // namespace

template <class T>
Reducer<T>::Reducer(Peers peers, std::span<const NamedBlock> parameters, std::span<T> storage,
                    const ReducerOptions& options, std::unique_ptr<GradientMemory<T>> memory)
    : peers_(std::move(peers)),
      options_(options),
      storage_(storage),
      memory_(std::move(memory)),
      ready_(parameters.size(), false),
      used_(parameters.size(), 0) {
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
  if (memory_) {
    if (options.unused_parameters || options.compression != Compression::none)
      throw std::logic_error("Reducer: unused parameters and compression are for gradients in host memory");
    options_.check_finite = false;
  } else {
    memory_ = std::make_unique<HostMemory<T>>();
  }
  if (!peers_.all_reduce) {  // nothing travels
    options_.compression = Compression::none;
    options_.rebuild = false;
  }
  if (options_.compression != Compression::none) compressed_.resize(total);
}

template <class T>
Reducer<T>::Reducer(multinode::World& world, multinode::Communicator& communicator,
                    std::span<const NamedBlock> parameters, std::span<T> storage, const ReducerOptions& options,
                    std::unique_ptr<GradientMemory<T>> memory)
    : Reducer(peers_of(world, communicator), parameters, storage, options, std::move(memory)) {}

template <class T>
Reducer<T>::~Reducer() {
  for (multinode::Work& work : started_) {
    try {
      work.wait();
    } catch (const std::exception&) {  // said by whoever waits for it, or after what is being unwound for
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
  divisor_ = divisor;
  ready_.assign(ready_.size(), false);
  if (!adds_) used_.assign(used_.size(), 0);
  order_.clear();
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
  used_[parameter] = 1;
  if (options_.rebuild) order_.push_back(parameter);
  --missing_.at(plan_.bucket[parameter]);
  if (divisor_ && options_.overlap) start_complete_buckets();
}

// In order of index, whatever the order of completion: a collective that ranks call in different orders never ends.
template <class T>
void Reducer<T>::start_complete_buckets() {
  while (started_.size() < missing_.size() && missing_[started_.size()] == 0) start(started_.size());
}

// "element 17 of the gradient of 'layer 1 weights'", which lies at `at` in the storage.
template <class T>
std::string Reducer<T>::element_text(std::size_t at) const {
  std::size_t i = 0;
  while (at < plan_.offset[i] || at - plan_.offset[i] >= counts_[i]) ++i;
  return "element " + std::to_string(at - plan_.offset[i]) + " of the gradient of '" + names_[i] + "'";
}

template <class T>
void Reducer<T>::start(std::size_t b) {
  const std::span<T> elements = bucket(b);
  if (options_.check_finite && !all_finite<T>(elements)) {
    const auto bad = std::find_if_not(elements.begin(), elements.end(), [](T x) { return std::isfinite(x); });
    throw std::runtime_error(element_text(static_cast<std::size_t>(&*bad - storage_.data())) +
                             (std::isnan(*bad) ? " is NaN" : " is infinite"));
  }
  multinode::Block block = elements;
  if (options_.compression != Compression::none) {
    const bool is_float16 = options_.compression == Compression::float16;
    void* to = compressed_.data() + plan_.buckets[b].offset;
    const T factor = static_cast<T>(compression_factor(divisor_));
    if (is_float16)
      compress<multinode::half, T>(elements, factor, static_cast<multinode::half*>(to));
    else
      compress<multinode::bfloat16, T>(elements, factor, static_cast<multinode::bfloat16*>(to));
    block = {to, elements.size(), is_float16 ? multinode::DataType::float16 : multinode::DataType::bfloat16};
  }
  started_.push_back(peers_.all_reduce ? peers_.all_reduce(block, name_of_bucket(b)) : multinode::Work());
}

// Waits for the sum, and makes it the average.
template <class T>
void Reducer<T>::finish(std::size_t b) {
  started_[b].wait();
  const std::span<T> elements = bucket(b);
  const T factor = T(1) / static_cast<T>(divisor_);
  if (options_.compression == Compression::none) {
    if (divisor_ != 1) memory_->scale(elements, factor);
    return;
  }
  const bool is_float16 = options_.compression == Compression::float16;
  const void* from = compressed_.data() + plan_.buckets[b].offset;
  const T back = factor / static_cast<T>(compression_factor(divisor_));
  if (is_float16 ? expand(static_cast<const multinode::half*>(from), back, elements)
                 : expand(static_cast<const multinode::bfloat16*>(from), back, elements))
    return;
  const auto bad = std::find_if_not(elements.begin(), elements.end(), [](T x) { return std::isfinite(x); });
  throw std::runtime_error("bucket " + std::to_string(b) + ", reduced as " + (is_float16 ? "float16" : "bfloat16") +
                           ", is not finite: " + element_text(static_cast<std::size_t>(&*bad - storage_.data())) +
                           (is_float16 ? "; bfloat16 has the range of float" : ""));
}

template <class T>
void Reducer<T>::wait() {
  for (std::size_t i = 0; i < ready_.size(); ++i) {
    if (ready_[i]) continue;
    if (!options_.unused_parameters)
      throw std::logic_error("Reducer: the gradient of '" + names_[i] +
                             "' was not marked ready in this pass; ReducerOptions::unused_parameters allows it");
    if (!used_[i]) std::ranges::fill(gradient(i), T(0));
    --missing_[plan_.bucket[i]];
  }
  adds_ = divisor_ == 0;
  if (adds_) return;
  start_complete_buckets();
  if (options_.unused_parameters && peers_.all_reduce)  // behind the buckets: no round more to wait for
    started_.push_back(peers_.all_reduce(std::span(used_), "all_reduce of which parameters were used"));
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) finish(b);
  if (!started_.empty()) started_.back().wait();
  started_.clear();
  if (options_.rebuild && relocated_) rebuild();
}

// By the order in which rank 0 marked: where the backward pass does not go from the last parameter to the first,
// buckets would fill up late, and those behind them wait.
template <class T>
void Reducer<T>::rebuild() {
  options_.rebuild = false;
  std::string text;
  for (const std::size_t i : order_) text += std::to_string(i) + " ";
  for (std::size_t i = ready_.size(); i-- > 0;)
    if (!ready_[i]) text += std::to_string(i) + " ";
  std::istringstream in(peers_.from_rank_0(text));
  const BucketPlan before = std::exchange(
      plan_,
      plan_buckets(counts_, std::vector<std::size_t>(std::istream_iterator<std::size_t>(in), {}), sizeof(T), options_));
  if (plan_.offset == before.offset) return;
  std::vector<typename GradientMemory<T>::Move> moves;
  for (std::size_t i = 0; i < counts_.size(); ++i) moves.push_back({before.offset[i], plan_.offset[i], counts_[i]});
  memory_->move(storage_, moves);
  relocated_();
}

template <class T>
std::string summary(const Reducer<T>& reducer, const multinode::World& world,
                    const multinode::Communicator& communicator) {
  const auto several = [](std::size_t count, const std::string& what) {
    return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
  };
  const auto backend = communicator.backend();
  return several(reducer.storage().size(), "parameter") + " in " + several(reducer.plan().buckets.size(), "bucket") +
         "; " + several(static_cast<std::size_t>(world.size()), "rank") + ", " + std::string(name_of(backend)) +
         (backend == multinode::Backend::nccl ? ", on GPUs" : ", on the CPU");
}

template class Reducer<float>;
template class Reducer<double>;
template std::string summary(const Reducer<float>&, const multinode::World&, const multinode::Communicator&);
template std::string summary(const Reducer<double>&, const multinode::World&, const multinode::Communicator&);

}  // namespace ddp
