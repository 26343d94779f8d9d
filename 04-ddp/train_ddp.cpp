// train_ddp: all ranks together learn from a table to tell yes from no. What more it takes than in one process:
//   diff train_single.cpp train_ddp.cpp
// Exit status: 0 held-out rows are told well enough, and all ranks have the same parameters; 1 not so, failed or timed
// out; 2 bad command line or environment.
#include "ddp/reducer.hpp"
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "train_step.hpp"
#include "train_table.hpp"

#include <multinode/report.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <set>
#include <stdexcept>

namespace {

int train(multinode::World& world, const TrainOptions& options) {
  const auto communicator = make_cpu_communicator(world, multinode::parse_backend(options.common.backend));
  const std::uint64_t seed = options.common.seed;
  const TrainTable rows = read_train_table(options);
  const auto batch_size = static_cast<std::size_t>(options.batch_size * world.size());
  ddp::DistributedSampler sampler(rows.trained, batch_size, world.rank(), world.size(), seed);

  model::Perceptron<float> model({{rows.table.features(), 12, 8, 1}, model::Loss::binary_cross_entropy},
                                 rows.table.size());
  model::Adam<float> optimizer(model.parameters());
  model.initialize(seed);
  broadcast_parameters(world, *communicator, model.parameters());
  ddp::Reducer<float> reducer(world, *communicator, model.parameters(), model.gradient_storage());
  connect(model, reducer);

  if (world.rank() == 0) std::printf("%s; ranks: %d\n", rows.described.c_str(), world.size());
  multinode::JsonLines json(world.rank() == 0 ? options.common.json : "");
  json.write(multinode::fingerprint(world));
  data::Batch<float> batch;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint32_t>(epoch));
    double loss = 0;
    for (std::size_t step = 0; step < sampler.steps(); ++step) {
      data::gather(rows.table, sampler.local_batch(step), batch);
      loss += model.forward(batch, {}).loss;
      reducer.begin(sampler.global_batch(step).size());
      model.backward([&](std::size_t parameter) { reducer.mark_ready(parameter); });
      reducer.wait();
      model.update(optimizer, options.learning_rate);
    }
    communicator->all_reduce(std::span(&loss, 1));
    loss /= static_cast<double>(rows.trained);
    if (!std::isfinite(loss)) throw std::runtime_error("the loss is no number; a smaller --learning-rate may help");
    if ((epoch % 20 == 0 || epoch == options.epochs) && world.rank() == 0)
      std::printf("epoch %d: loss %.4f\n", epoch, loss);
    json.write({{"epoch", epoch}, {"loss", loss}});
  }

  data::gather(rows.table, rows.held_out, batch);
  const double accuracy = 100 * static_cast<double>(model.forward(batch, {}).right) / static_cast<double>(batch.size());
  const auto hashes = world.gather("parameters", std::to_string(hash_of<float>(model.copy_parameters())));
  const bool identical = std::set(hashes.begin(), hashes.end()).size() == 1;
  const bool right = accuracy >= rows.wanted && identical;
  if (world.rank() == 0)
    std::printf("%s: accuracy %.1f %% on %zu held-out rows, at least %.1f %% wanted; the ranks' parameters are %s\n",
                right ? "RIGHT" : "WRONG", accuracy, batch.size(), rows.wanted,
                identical ? "identical" : "not the same");
  json.write({{"right", right}, {"accuracy", accuracy}, {"identical", identical}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  TrainOptions options;
  return multinode::run(options.program("train_ddp"), argc, argv,
                        [&](multinode::World& world) { return train(world, options); });
}
