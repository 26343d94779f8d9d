// ddp_equality: k steps on P ranks and k steps of this process alone, from the same start, with the same global
// batches, must end at the same parameters: averaging over ranks is the same as a bigger batch.
// Exit status: 0 equal within the bound and all ranks bit-identical, 1 not so.
//
// The bound. Both ways add the same numbers in different orders, so only rounding tells them apart. Let u = 2^-53.
//  - A sum of products whose longest chain of additions is N is computed with an error of at most g |terms|, where
//    |terms| is the same sum of absolute values and g = N u / (1 - N u), whatever the order (Higham, Accuracy and
//    Stability of Numerical Algorithms, 2nd ed., section 3.1). Nested sums add up their N.
//  - With inputs within +-1 and s the scale of units that dropout keeps, a[0] = 1, a[l] = s max_row(sum |W[l]| a[l-1] +
//    |b[l]|) are the sums of absolute values of the forward pass, and so bound units and, times g, their errors. ReLU
//    does not enlarge an error. (A unit within an error of its kink could fall to either side and change the gradient;
//    errors are 1e-12 or less, units of order 1, and there are some 1e5 of them: a chance of 1e-6, and seeds are
//    fixed.)
//  - Softmax minus one-hot is at most 1, and its error at most twice that of the outputs: e[L] = 1 + 2 a[L];
//    e[l-1] = s max_column(sum |W[l]|) e[l].
//  - So a mean gradient's error is at most g G, G = max over layers of e[l] max(a[l-1], 1), and two of them differ by
//  at
//    most 2 g G. Momentum m lets each act on the parameters with at most rate / (1 - m). Updates round their own
//    results: 4 u (largest parameter + rate / (1 - m) G).
//  - What differs once grows or shrinks with the steps that follow. How much is measured: the training alone, from a
//    start with every parameter moved by 1e-7 up or down, differs by r 1e-7 at most on its way; 10 max(r, 1) allows for
//    directions that grow more than that one.
//  bound = 10 max(r, 1) k (2 g G rate / (1 - m) + 4 u (largest + G rate / (1 - m)))
#include "data/fashion_mnist.hpp"
#include "ddp/philox.hpp"
#include "ddp/sampler.hpp"
#include "train_step.hpp"

#include <multinode/program.hpp>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <set>

namespace {

constexpr int steps = 13;        // two epochs and a step
constexpr int planted_step = 3;  // one fault in one step must be enough
constexpr std::size_t batch_size = 50;
constexpr double learning_rate = 0.02, momentum = 0.9, dropout = 0.25;
const std::vector<std::size_t> sizes{data::image_bytes, 64, 32, data::classes};
constexpr ddp::ReducerOptions small_buckets{1000, 20'000};  // six parameters in several buckets

using Model = model::Perceptron<double>;

// 251 images: in the last step of an epoch one rank has one sample, and the others none.
data::Images some_images(std::uint64_t seed) {
  data::Images images;
  for (std::uint32_t i = 0; i < 251; ++i) {
    images.labels.push_back(static_cast<std::uint8_t>(i % data::classes));
    for (std::uint32_t p = 0; p < data::image_bytes; ++p)
      images.pixels.push_back(static_cast<std::uint8_t>(ddp::philox({i, p, 0, 0}, seed)[0] >> 24));
  }
  return images;
}

enum class Fault { none, missing_average, dropped_sample, unreduced_bucket };

// The parameters after each step.
std::vector<std::vector<double>> train(const data::Images& images, std::uint64_t seed, int rank, int size,
                                       multinode::World& world, multinode::Communicator* communicator, Fault fault,
                                       double moved, const ddp::ReducerOptions& buckets = small_buckets) {
  int step = 0, bucket = 0;
  Model model({.sizes = sizes}, batch_size);
  Model::Sgd optimizer(model.parameters(), momentum);
  ddp::Peers peers;
  if (communicator)
    peers = {[&](multinode::Block block, const char*) {
               const bool left_out = fault == Fault::unreduced_bucket && step == planted_step && bucket++ == 1;
               return left_out ? multinode::Work() : communicator->start_all_reduce(block);
             },
             [&](const std::string& text) { return world.gather("order", text)[0]; }};
  ddp::Reducer<double> reducer(std::move(peers), model.parameters(), model.gradient_storage(), buckets);
  connect(model, reducer);
  model.initialize(seed);
  if (communicator) ddp::broadcast_parameters(world, *communicator, model.parameters());
  for (std::size_t i = 0; i < model.parameters().size(); ++i)
    for (std::uint32_t j = 0; j < model.parameter(i).size(); ++j)
      model.parameter(i)[j] += ddp::philox({j, static_cast<std::uint32_t>(i), 1, 1}, seed)[0] % 2 ? moved : -moved;

  ddp::DistributedSampler sampler(images.size(), batch_size, rank, size, seed);
  std::vector<std::vector<double>> parameters;
  data::Batch<double> batch;
  for (; step < steps; ++step) {
    const auto s = static_cast<std::size_t>(step) % sampler.steps();
    if (s == 0) sampler.set_epoch(static_cast<std::uint32_t>(step));
    auto samples = sampler.local_batch(s);
    if (fault == Fault::dropped_sample && step == planted_step && rank == size - 1)
      samples = samples.first(samples.size() - 1);
    data::gather(images, samples, batch);
    const bool averaged = fault != Fault::missing_average || step != planted_step;
    train_step(model, optimizer, reducer, batch, averaged ? sampler.global_batch(s).size() : 1,
               {dropout, seed, static_cast<std::uint32_t>(step)}, learning_rate);
    parameters.push_back(model.copy_parameters());
  }
  return parameters;
}

double largest_difference(std::span<const double> a, std::span<const double> b) {
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) largest = std::max(largest, std::abs(a[i] - b[i]));
  return largest;
}

// The largest G of the comment above over all steps, and the largest parameter.
struct Magnitude {
  double gradient = 0, parameter = 0;
};
Magnitude magnitude_of(std::span<const std::vector<double>> history) {
  Magnitude most;
  const double scale = 1 / (1 - dropout);
  const std::size_t layers = sizes.size() - 1;
  for (const std::vector<double>& parameters : history) {
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
    double e = 1 + 2 * a[layers];
    for (std::size_t l = layers; l >= 1; e *= scale * column_sum[l--])
      most.gradient = std::max(most.gradient, e * std::max(a[l - 1], 1.0));
    for (const double parameter : parameters) most.parameter = std::max(most.parameter, std::abs(parameter));
  }
  return most;
}

int run(multinode::World& world, const multinode::CommonOptions& common, Fault fault, bool one_bucket) {
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(common.backend));
  const data::Images images = some_images(common.seed);
  const auto alone = train(images, common.seed, 0, 1, world, nullptr, Fault::none, 0);
  const auto together = train(images, common.seed, world.rank(), world.size(), world, communicator.get(), fault, 0,
                              one_bucket ? ddp::ReducerOptions{1 << 25, 1 << 25} : small_buckets);

  constexpr double move = 1e-7;
  const auto moved = train(images, common.seed, 0, 1, world, nullptr, Fault::none, move);
  double growth = 1;
  for (std::size_t k = 0; k < alone.size(); ++k)
    growth = std::max(growth, largest_difference(alone[k], moved[k]) / move);

  const double u = 0x1p-53, reach = learning_rate / (1 - momentum);
  double chain = static_cast<double>(batch_size) + world.size() + 20;
  for (const std::size_t size : sizes) chain += 2 * static_cast<double>(size);
  const double g = chain * u / (1 - chain * u);
  const Magnitude most = magnitude_of(alone);
  const double bound =
      10 * growth * steps * (2 * g * most.gradient * reach + 4 * u * (most.parameter + most.gradient * reach));
  const double difference = largest_difference(alone.back(), together.back());
  const double change = largest_difference(alone.front(), alone.back());

  const auto hashes = world.gather("parameters", std::to_string(hash_of(std::span(together.back()))));
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  if (world.rank() == 0)
    std::printf(
        "%s, %d ranks: difference %.3g, bound %.3g, difference/bound %.3g\n"
        "training moved parameters by %.3g; ranks %s, %s\n",
        std::string(name_of(communicator->backend())).c_str(), world.size(), difference, bound, difference / bound,
        change, identical ? "bit-identical" : "DIFFER", hashes[0].c_str());
  std::fflush(stdout);  // a launcher may end this rank as soon as another one has failed
  return difference <= bound && identical ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  std::string plant;
  Fault fault = Fault::none;
  boost::program_options::options_description known("Options of ddp_equality");
  bool one_bucket = false;
  known.add_options()("one-bucket", boost::program_options::bool_switch(&one_bucket),
                      "reduce all gradients as one block")(
      "plant", boost::program_options::value(&plant),
      "a fault in one step: missing-average, dropped-sample or unreduced-bucket");
  const auto validate = [&] {
    if (plant == "missing-average")
      fault = Fault::missing_average;
    else if (plant == "dropped-sample")
      fault = Fault::dropped_sample;
    else if (plant == "unreduced-bucket")
      fault = Fault::unreduced_bucket;
    else if (!plant.empty())
      throw multinode::UsageError("--plant: no such fault: '" + plant + "'");
  };
  return multinode::run({"ddp_equality", known, common, validate}, argc, argv,
                        [&](multinode::World& world) { return run(world, common, fault, one_bucket); });
}
