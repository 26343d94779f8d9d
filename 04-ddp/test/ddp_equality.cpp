// ddp_equality: 13 steps on P ranks and 13 steps of this process alone, from the same start, with the same global
// batches, must end at the same parameters: averaging over ranks is the same as a bigger batch. It tries SGD and Adam,
// the three losses, steps of several passes, and gradients that the ranks mark in different orders. Each is
// compared again with faults planted in a single step, which must be found. Before a rank's last gradient is complete,
// the reduction of its first bucket must have ended: buckets travel during the backward pass.
// Exit status: 0 all equal within the tolerance, all ranks bit-identical, and every fault more than ten times the
// tolerance; 1 otherwise.
#include "ddp/philox.hpp"
#include "ddp/sampler.hpp"
#include "model/training_step.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>

#include <algorithm>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <set>

namespace {

using Model = model::Perceptron<double>;

constexpr int steps = 13;                              // two epochs and a step
constexpr int planted_step = 3;                        // one fault in one step must be enough
constexpr std::size_t samples = 251, batch_size = 50;  // the last step of an epoch has one sample, on one rank
constexpr double learning_rate = 0.02, momentum = 0.9, dropout = 0.25;
const std::vector<std::size_t> sizes{12, 16, 8, 4};
const ddp::ReducerOptions small_buckets{200, 800};  // six parameters in several buckets

// Both ways add the same numbers in different orders, so only rounding tells their parameters apart, which are of order
// 1. Measured on up to 4 ranks: at most 2e-16 after 13 steps, and the smallest fault in one of them moves one by 1e-3.
constexpr double tolerance = 1e-12;

struct Training {
  const char* name;
  model::Loss loss;
  bool adam = false;
  std::size_t passes = 1;                // that a step consists of
  bool rank_marks_in_its_order = false;  // not from the last parameter to the first
  ddp::ReducerOptions buckets = small_buckets;
};

const Training trainings[] = {
    {.name = "SGD, cross-entropy", .loss = model::Loss::cross_entropy},
    {.name = "SGD, cross-entropy, one bucket", .loss = model::Loss::cross_entropy, .buckets = {1 << 20, 1 << 20}},
    {.name = "SGD, mean square, 3 passes, any order",
     .loss = model::Loss::mean_square,
     .passes = 3,
     .rank_marks_in_its_order = true},
    {.name = "Adam, cross-entropy", .loss = model::Loss::cross_entropy, .adam = true},
    {.name = "Adam, binary cross-entropy, 3 passes, any order",
     .loss = model::Loss::binary_cross_entropy,
     .adam = true,
     .passes = 3,
     .rank_marks_in_its_order = true},
};

enum class Fault { none, missing_average, dropped_sample, unreduced_bucket, other_shape, more_layers, no_overlap };
const std::map<std::string, Fault> faults{
    {"", Fault::none},
    {"missing-average", Fault::missing_average},
    {"dropped-sample", Fault::dropped_sample},
    {"unreduced-bucket", Fault::unreduced_bucket},
    {"other-shape", Fault::other_shape},
    {"more-layers", Fault::more_layers},
    {"no-overlap", Fault::no_overlap},
};

void gather(const Training& training, std::span<const std::uint32_t> numbers, std::uint64_t seed,
            data::Batch<double>& batch) {
  batch.inputs.clear();
  batch.targets.clear();
  batch.labels.clear();
  batch.samples.assign(numbers.begin(), numbers.end());
  for (const std::uint32_t i : numbers) {
    for (std::uint32_t j = 0; j < sizes[0]; ++j)
      batch.inputs.push_back(std::ldexp(ddp::philox({i, j, 0, 0}, seed)[0], -31) - 1);
    batch.labels.push_back(static_cast<std::uint8_t>(i % sizes.back()));
    for (std::uint32_t j = 0; j < sizes.back(); ++j) {
      const bool yes = ddp::philox({i, j, 0, 1}, seed)[0] % 2;
      batch.targets.push_back(yes ? 1 : training.loss == model::Loss::mean_square ? -1 : 0);
    }
  }
}

struct End {
  std::vector<double> parameters, state;  // of the model and of the optimizer, at the end
};

// A reduction that may be waited for twice.
struct Shared : multinode::Work::State {
  explicit Shared(std::shared_ptr<multinode::Work> work) : work_(std::move(work)) {}
  void wait() override { work_->wait(); }
  std::shared_ptr<multinode::Work> work_;
};

// `communicator`: null for this process alone.
End train(const Training& training, std::uint64_t seed, multinode::World& world, multinode::Communicator* communicator,
          Fault fault = Fault::none) {
  const int rank = communicator ? world.rank() : 0, size = communicator ? world.size() : 1;
  int step = 0, bucket = 0;
  std::vector<std::size_t> layers = sizes;
  const bool last = communicator && rank == size - 1;
  if (fault == Fault::other_shape && last) ++layers[2];
  if (fault == Fault::more_layers && last) layers.push_back(4);
  Model model({.sizes = layers, .loss = training.loss}, batch_size);
  Model::Sgd sgd(model.parameters(), momentum);
  Model::Adam adam(model.parameters());
  std::shared_ptr<multinode::Work> first;  // the reduction of this step's first bucket
  ddp::AllReduce all_reduce;
  if (communicator)
    all_reduce = [&](multinode::Block block, std::size_t, const char* name) {
      const bool left_out = fault == Fault::unreduced_bucket && step == planted_step && bucket == 0;
      if (left_out) return ++bucket, multinode::Work();
      auto work = communicator->start_all_reduce(block, multinode::Reduction::sum, name);
      if (bucket++ > 0) return work;
      first = std::make_shared<multinode::Work>(std::move(work));
      return multinode::Work(std::make_unique<Shared>(first));
    };
  ddp::ReducerOptions buckets = training.buckets;
  buckets.overlap = fault != Fault::no_overlap;
  ddp::Reducer<double> reducer(std::move(all_reduce), model.parameters(), model.gradient_storage(), buckets);
  model.initialize(seed);
  if (communicator) ddp::broadcast_parameters(world, *communicator, model.parameters());
  ddp::DistributedSampler sampler(samples, batch_size, rank, size, seed);
  for (; step < steps; ++step) {
    const auto s = static_cast<std::size_t>(step) % sampler.steps();
    if (s == 0) sampler.set_epoch(static_cast<std::uint32_t>(step));
    auto samples_here = sampler.local_batch(s);
    const bool planted = step == planted_step;
    if (fault == Fault::dropped_sample && planted && last) samples_here = samples_here.first(samples_here.size() - 1);
    const std::size_t divisor = fault == Fault::missing_average && planted ? 1 : sampler.global_batch(s).size();
    const model::Dropout drop{dropout, seed, static_cast<std::uint32_t>(step)};
    data::Batch<double> batch;
    bucket = 0;
    first.reset();
    if (training.passes == 1 && !training.rank_marks_in_its_order) {
      gather(training, samples_here, seed, batch);
      const auto overlap = [&](std::size_t parameter) {
        const bool several = reducer.plan().buckets.size() > 1;
        if (parameter > 0 || fault == Fault::unreduced_bucket || !communicator || !several) return;
        if (!first) throw std::logic_error("no bucket was sent before the last gradient was computed");
        first->wait();
      };
      training.adam ? train_step(model, adam, reducer, batch, divisor, drop, learning_rate, overlap)
                    : train_step(model, sgd, reducer, batch, divisor, drop, learning_rate, overlap);
    } else {
      for (std::size_t pass = 0; pass < training.passes; ++pass) {
        const ddp::Range part = ddp::part_of(samples_here.size(), pass, training.passes);
        gather(training, samples_here.subspan(part.begin, part.end - part.begin), seed, batch);
        model.load(batch, drop, learning_rate);
        model.forward();
        pass + 1 < training.passes ? reducer.accumulate() : reducer.begin(divisor);
        std::vector<std::size_t> ready;
        model.backward([&](std::size_t parameter) { ready.push_back(parameter); }, reducer.adds());
        std::rotate(ready.begin(), ready.begin() + 1 + rank % 3, ready.end());
        for (const std::size_t parameter : ready) reducer.mark_ready(parameter);
        reducer.wait();
      }
      training.adam ? model.update(adam) : model.update(sgd);
    }
  }
  End end{model.copy_parameters(), {}};
  for (const ddp::NamedBlock& block : training.adam ? adam.state() : sgd.state()) {
    const std::span values(static_cast<const double*>(block.block.data), block.block.count);
    end.state.insert(end.state.end(), values.begin(), values.end());
  }
  return end;
}

double largest_difference(std::span<const double> a, std::span<const double> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

bool compare(const Training& training, multinode::World& world, multinode::Communicator& communicator,
             std::uint64_t seed, Fault fault) {
  const End alone = train(training, seed, world, nullptr);
  const auto off = [&](const End& end) { return largest_difference(alone.parameters, end.parameters); };
  End together = train(training, seed, world, &communicator, fault);
  const ddp::NamedBlock blocks[] = {{"parameters", {together.parameters.size()}, std::span(together.parameters)},
                                    {"state", {together.state.size()}, std::span(together.state)}};
  const std::vector<std::string> hashes = ddp::hashes_of_ranks(world, blocks);
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  double least = std::numeric_limits<double>::infinity();  // of what the faults do
  for (const Fault planted : {Fault::missing_average, Fault::dropped_sample, Fault::unreduced_bucket})
    if (world.size() > 1 || planted != Fault::unreduced_bucket)
      least = std::min(least, off(train(training, seed, world, &communicator, planted)));
  if (world.rank() == 0)
    std::printf("%s, %d ranks: %s: differ by %.2g, with faults by %.2g; ranks %s, %s\n",
                std::string(name_of(communicator.backend())).c_str(), world.size(), training.name, off(together), least,
                identical ? "bit-identical" : "DIFFER", hashes[0].c_str());
  std::fflush(stdout);  // a launcher may end this rank as soon as another one has failed
  return off(together) <= tolerance && least >= 10 * tolerance && identical;
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  multinode::CommonOptions common;
  std::string plant;
  po::options_description known("Options of ddp_equality");
  known.add_options()("plant", po::value(&plant),
                      "a fault in one step of every training: missing-average, dropped-sample or unreduced-bucket; in "
                      "the last rank's model: other-shape or more-layers; or no-overlap: buckets are sent at the end");
  const auto validate = [&] {
    if (!faults.contains(plant)) throw multinode::UsageError("--plant: no such fault: '" + plant + "'");
  };
  return multinode::run({"ddp_equality", known, common, validate}, argc, argv, [&](multinode::World& world) {
    const auto communicator = multinode::make_cpu_communicator(world, multinode::parse_backend(common.backend));
    const Fault fault = faults.at(plant);
    bool right = true;
    for (const Training& training : trainings)
      right = compare(training, world, *communicator, common.seed, fault) && right;
    return right ? multinode::exit_right : multinode::exit_wrong;
  });
}
