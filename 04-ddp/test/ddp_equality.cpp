// ddp_equality: 13 steps on P ranks and 13 steps of this process alone, from the same start, with the same global
// batches, must end at the same parameters: averaging over ranks is the same as a bigger batch. It tries SGD and Adam,
// the three losses, steps of several passes, and gradients that the ranks mark in different orders. Each is
// compared again with faults planted in a single step, which must be found.
// Exit status: 0 all equal within their bounds, all ranks bit-identical, and every fault more than ten times a bound;
// 1 otherwise.
//
// The bound. Both ways add the same numbers in different orders, so only rounding tells them apart. Let u = 2^-53.
//  - A sum of products whose longest chain of additions is N is computed with an error of at most g |terms|, where
//    |terms| is the same sum of absolute values and g = N u / (1 - N u), whatever the order (Higham, Accuracy and
//    Stability of Numerical Algorithms, 2nd ed., section 3.1). Nested sums add up their N.
//  - With inputs within +-1 and s the scale of units that dropout keeps, a[0] = 1, a[l] = s max_row(sum |W[l]| a[l-1] +
//    |b[l]|) are the sums of absolute values of the forward pass, and so bound units and, times g, their errors. ReLU
//    does not enlarge an error. (A unit within an error of its kink could fall to either side and change the gradient;
//    errors are 1e-13 or less, units of order 1, and there are some 1e4 of them: a chance of 1e-8, and seeds are
//    fixed.)
//  - A loss's derivative by an output and its error, divided by g: softmax minus one-hot is at most 1, and its error
//    twice the outputs'; sigmoid minus target is at most 1, and its error the outputs'; 2 (z - t) / n for n outputs and
//    targets of +-1 is at most 2 (a[L] + 1) / n, and its error 2 a[L] / n. So e[L] = 1 + 4 a[L] holds for all of them;
//    e[l-1] = s max_column(sum |W[l]|) e[l].
//  - So a mean gradient's error is at most g G, G = max over layers of e[l] max(a[l-1], 1), and two of them differ by
//  at
//    most d = 2 g G.
//  - SGD with momentum m lets each difference act on the parameters with at most rate / (1 - m): D = d rate / (1 - m).
//  - Adam's step is rate m / (v + epsilon), where, after its corrections, m is a weighted mean of the gradients so far
//    and v a root of a weighted mean of their squares: a weighted 2-norm. If every gradient differs by at most d, so do
//    both m and v (the triangle inequality), and steps by at most D = rate d (1 + R) / (v + epsilon), R = max |m| / v.
//    With weights w[i] of m and y[i] of v, sums of 1 each, m^2 <= sum(w[i]^2 / y[i]) v^2 <= max(w[i] / y[i]) v^2 by
//    Cauchy and Schwarz; the maximum is the last step's, (0.1 / (1 - 0.9^k)) / (0.001 / (1 - 0.999^k)), 1.73 for k =
//    13: R < 1.4. v is taken from the training alone, its smallest element that is not 0. (Where it is 0 all gradients
//    so far were: of units that ReLU or dropout has cut, whose zeros have no error.)
//  - Updates round their own results: U = 4 u (largest parameter + rate / (1 - m) G), and for Adam 20 u (largest
//    parameter + rate R).
//  - What differs once grows or shrinks with the steps that follow. How much is measured: the training alone, from a
//    start with every parameter moved by 1e-9 up or down, differs by r 1e-9 at most on its way; 10 max(r, 1) allows for
//    directions that grow more than that one.
//  bound = 10 max(r, 1) sum over steps (D + U)
#include "ddp/philox.hpp"
#include "ddp/sampler.hpp"
#include "training_step.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <thread>

namespace {

using Model = model::Perceptron<double>;

constexpr int steps = 13;                              // two epochs and a step
constexpr int planted_step = 3;                        // one fault in one step must be enough
constexpr std::size_t samples = 251, batch_size = 50;  // the last step of an epoch has one sample, on one rank
constexpr std::chrono::seconds nap{11};                // longer than a rank waits before it names the late one
constexpr double learning_rate = 0.02, momentum = 0.9, dropout = 0.25;
const std::vector<std::size_t> sizes{12, 16, 8, 4};
const ddp::ReducerOptions small_buckets{200, 800};  // six parameters in several buckets

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

enum class Fault { none, missing_average, dropped_sample, unreduced_bucket, other_shape, more_layers, late_rank };
const std::map<std::string, Fault> faults{
    {"", Fault::none},
    {"missing-average", Fault::missing_average},
    {"dropped-sample", Fault::dropped_sample},
    {"unreduced-bucket", Fault::unreduced_bucket},
    {"other-shape", Fault::other_shape},
    {"more-layers", Fault::more_layers},
    {"late-rank", Fault::late_rank},
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

struct History {
  std::vector<std::vector<double>> parameters;  // after each step
  std::vector<double> state;                    // the optimizer's, at the end
  std::vector<double> root;                     // Adam's smallest v of the comment above, after each step
};

double smallest_root(const std::vector<ddp::NamedBlock>& state, int step) {
  double smallest = std::numeric_limits<double>::infinity();
  for (const ddp::NamedBlock& block : state)
    if (block.name.starts_with("mean of squares"))
      for (const double square : std::span(static_cast<const double*>(block.block.data), block.block.count))
        if (square > 0) smallest = std::min(smallest, std::sqrt(square / (1 - std::pow(0.999, step))));
  return smallest;
}

// `communicator`: null for this process alone. `moved`: by how much every parameter is, at the start.
History train(const Training& training, std::uint64_t seed, multinode::World& world,
              multinode::Communicator* communicator, Fault fault = Fault::none, double moved = 0) {
  const int rank = communicator ? world.rank() : 0, size = communicator ? world.size() : 1;
  int step = 0, bucket = 0;
  std::vector<std::size_t> layers = sizes;
  const bool last = communicator && rank == size - 1;
  if (fault == Fault::other_shape && last) ++layers[2];
  if (fault == Fault::more_layers && last) layers.push_back(4);
  Model model({.sizes = layers, .loss = training.loss}, batch_size);
  Model::Sgd sgd(model.parameters(), momentum);
  Model::Adam adam(model.parameters());
  ddp::AllReduce all_reduce;
  if (communicator)
    all_reduce = [&](multinode::Block block, std::size_t, const char* name) {
      const bool left_out = fault == Fault::unreduced_bucket && step == planted_step && bucket++ == 0;
      return left_out ? multinode::Work() : communicator->start_all_reduce(block, multinode::Reduction::sum, name);
    };
  ddp::Reducer<double> reducer(std::move(all_reduce), model.parameters(), model.gradient_storage(), training.buckets);
  model.initialize(seed);
  if (communicator) ddp::broadcast_parameters(world, *communicator, model.parameters());
  for (std::size_t i = 0; i < model.parameters().size(); ++i)
    for (std::uint32_t j = 0; j < model.parameter(i).size(); ++j)
      model.parameter(i)[j] += ddp::philox({j, static_cast<std::uint32_t>(i), 1, 1}, seed)[0] % 2 ? moved : -moved;

  ddp::DistributedSampler sampler(samples, batch_size, rank, size, seed);
  History history;
  for (; step < steps; ++step) {
    const auto s = static_cast<std::size_t>(step) % sampler.steps();
    if (s == 0) sampler.set_epoch(static_cast<std::uint32_t>(step));
    auto samples_here = sampler.local_batch(s);
    const bool planted = step == planted_step;
    if (fault == Fault::dropped_sample && planted && last) samples_here = samples_here.first(samples_here.size() - 1);
    const std::size_t divisor = fault == Fault::missing_average && planted ? 1 : sampler.global_batch(s).size();
    const model::Dropout drop{dropout, seed, static_cast<std::uint32_t>(step)};
    data::Batch<double> batch;
    if (training.passes == 1 && !training.rank_marks_in_its_order) {
      gather(training, samples_here, seed, batch);
      const auto be_late = [&](std::size_t parameter) {
        if (fault == Fault::late_rank && planted && rank == 1 && parameter == 0) std::this_thread::sleep_for(nap);
      };
      const StepHooks hooks{.complete = be_late};
      training.adam ? train_step(model, adam, reducer, batch, divisor, drop, learning_rate, hooks)
                    : train_step(model, sgd, reducer, batch, divisor, drop, learning_rate, hooks);
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
    history.parameters.push_back(model.copy_parameters());
    history.root.push_back(smallest_root(adam.state(), step + 1));
  }
  for (const ddp::NamedBlock& block : training.adam ? adam.state() : sgd.state()) {
    const std::span values(static_cast<const double*>(block.block.data), block.block.count);
    history.state.insert(history.state.end(), values.begin(), values.end());
  }
  return history;
}

double largest_difference(std::span<const double> a, std::span<const double> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// G of the comment above.
double gradient_scale(const std::vector<double>& parameters) {
  const double scale = 1 / (1 - dropout);
  const std::size_t layers = sizes.size() - 1;
  std::vector<double> a(layers + 1, 1), column_sum(layers + 1);
  std::size_t at = 0;
  for (std::size_t l = 1; l <= layers; ++l) {
    std::vector<double> columns(sizes[l - 1]);
    double row_sum = 0, bias = 0;
    for (std::size_t i = 0; i < sizes[l]; ++i) {
      double row = 0;
      for (std::size_t j = 0; j < sizes[l - 1]; ++j, ++at) {
        row += std::abs(parameters[at]);
        columns[j] += std::abs(parameters[at]);
      }
      row_sum = std::max(row_sum, row);
    }
    for (std::size_t i = 0; i < sizes[l]; ++i) bias = std::max(bias, std::abs(parameters[at++]));
    a[l] = (l < layers ? scale : 1) * (row_sum * a[l - 1] + bias);
    column_sum[l] = *std::max_element(columns.begin(), columns.end());
  }
  double e = 1 + 4 * a[layers], largest = 0;
  for (std::size_t l = layers; l >= 1; e *= scale * column_sum[l--])
    largest = std::max(largest, e * std::max(a[l - 1], 1.0));
  return largest;
}

double bound_of(const Training& training, const History& alone, const History& moved, double move, int size) {
  double growth = 1;
  for (std::size_t k = 0; k < steps; ++k)
    growth = std::max(growth, largest_difference(alone.parameters[k], moved.parameters[k]) / move);
  double chain = static_cast<double>(batch_size + training.passes) + size + 20;
  for (const std::size_t size_of_layer : sizes) chain += 2 * static_cast<double>(size_of_layer);
  const double u = 0x1p-53, g = chain * u / (1 - chain * u), most = 1.4 /* R */, epsilon = 1e-8;
  double sum = 0, gradient = 0, parameter = 0, root = std::numeric_limits<double>::infinity();
  for (std::size_t k = 0; k < steps; ++k) {
    gradient = std::max(gradient, gradient_scale(alone.parameters[k]));
    for (const double p : alone.parameters[k]) parameter = std::max(parameter, std::abs(p));
    root = std::min(root, alone.root[k]);
    const double d = 2 * g * gradient, reach = learning_rate / (1 - momentum);
    sum += training.adam
               ? learning_rate * d * (1 + most) / (root + epsilon) + 20 * u * (parameter + learning_rate * most)
               : d * reach + 4 * u * (parameter + gradient * reach);
  }
  return 10 * growth * sum;
}

bool compare(const Training& training, multinode::World& world, multinode::Communicator& communicator,
             std::uint64_t seed, Fault fault) {
  constexpr double move = 1e-9;
  const History alone = train(training, seed, world, nullptr);
  const double bound =
      bound_of(training, alone, train(training, seed, world, nullptr, Fault::none, move), move, world.size());
  const auto off = [&](const History& together) {
    return largest_difference(alone.parameters.back(), together.parameters.back()) / bound;
  };
  const History together = train(training, seed, world, &communicator, fault);
  std::vector<double> last = together.parameters.back(), state = together.state;
  const ddp::NamedBlock blocks[] = {{"parameters", {last.size()}, std::span(last)},
                                    {"state", {state.size()}, std::span(state)}};
  const std::vector<std::string> hashes = ddp::hashes_of_ranks(world, blocks);
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  double least = std::numeric_limits<double>::infinity();  // of what the faults do
  for (const Fault planted : {Fault::missing_average, Fault::dropped_sample, Fault::unreduced_bucket})
    if (world.size() > 1 || planted != Fault::unreduced_bucket)
      least = std::min(least, off(train(training, seed, world, &communicator, planted)));
  if (world.rank() == 0)
    std::printf("%s, %d ranks: %s: difference/bound %.2g, with faults %.2g; ranks %s, %s\n",
                std::string(name_of(communicator.backend())).c_str(), world.size(), training.name, off(together), least,
                identical ? "bit-identical" : "DIFFER", hashes[0].c_str());
  std::fflush(stdout);  // a launcher may end this rank as soon as another one has failed
  return off(together) <= 1 && least >= 10 && identical;
}

}  // namespace

int main(int argc, char** argv) {
  namespace po = boost::program_options;
  multinode::CommonOptions common;
  std::string plant;
  po::options_description known("Options of ddp_equality");
  known.add_options()("plant", po::value(&plant),
                      "a fault in one step of every training: missing-average, dropped-sample or unreduced-bucket; in "
                      "the last rank's model: other-shape or more-layers; or, which must change nothing, late-rank: "
                      "rank 1 sleeps for 11 s in a backward pass");
  const auto validate = [&] {
    if (!faults.contains(plant)) throw multinode::UsageError("--plant: no such fault: '" + plant + "'");
  };
  return multinode::run({"ddp_equality", known, common, validate}, argc, argv, [&](multinode::World& world) {
    const auto communicator = multinode::make_cpu_communicator(world, multinode::parse_backend(common.backend));
    const Fault fault = faults.at(plant);
    bool right = true;
    for (const Training& training : std::span(trainings).first(fault == Fault::late_rank ? 1 : std::size(trainings)))
      right = compare(training, world, *communicator, common.seed, fault) && right;
    return right ? multinode::exit_right : multinode::exit_wrong;
  });
}
