// train_single: one process learns from a table to tell yes from no. What more it takes to train on several:
//   diff train_single.cpp train_ddp.cpp
// Exit status: 0 held-out rows are told well enough, 1 not so, failed or timed out, 2 bad command line or environment.
#include "ddp/sampler.hpp"
#include "model/perceptron.hpp"
#include "train_table.hpp"

#include <multinode/report.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdio>
#include <stdexcept>

namespace {

int train(multinode::World& world, const TrainOptions& options) {
  if (world.size() > 1) throw multinode::UsageError("train_single is one process; train_ddp trains on several");
  const std::uint64_t seed = options.common.seed;
  const TrainTable rows = read_train_table(options);
  const auto batch_size = static_cast<std::size_t>(options.batch_size);
  ddp::DistributedSampler sampler(rows.trained, batch_size, 0, 1, seed);

  model::Perceptron<float> model({{rows.table.features(), 12, 8, 1}, model::Loss::binary_cross_entropy},
                                 rows.table.size());
  model::Adam<float> optimizer(model.parameters());
  model.initialize(seed);

  std::printf("%s\n", rows.described.c_str());
  multinode::JsonLines json(options.common.json);
  json.write(multinode::fingerprint(world));
  data::Batch<float> batch;
  for (int epoch = 1; epoch <= options.epochs; ++epoch) {
    sampler.set_epoch(static_cast<std::uint32_t>(epoch));
    double loss = 0;
    for (std::size_t step = 0; step < sampler.steps(); ++step) {
      data::gather(rows.table, sampler.local_batch(step), batch);
      loss += model.forward(batch, {}).loss;
      model.backward([](std::size_t) {});
      for (float& gradient : model.gradient_storage()) gradient *= 1 / static_cast<float>(batch.size());
      model.update(optimizer, options.learning_rate);
    }
    loss /= static_cast<double>(rows.trained);
    if (!std::isfinite(loss)) throw std::runtime_error("the loss is no number; a smaller --learning-rate may help");
    if (epoch % 20 == 0 || epoch == options.epochs) std::printf("epoch %d: loss %.4f\n", epoch, loss);
    json.write({{"epoch", epoch}, {"loss", loss}});
  }

  data::gather(rows.table, rows.held_out, batch);
  const double accuracy = 100 * static_cast<double>(model.forward(batch, {}).right) / static_cast<double>(batch.size());
  const bool right = accuracy >= rows.wanted;
  std::printf("%s: accuracy %.1f %% on %zu held-out rows, at least %.1f %% wanted\n", right ? "RIGHT" : "WRONG",
              accuracy, batch.size(), rows.wanted);
  json.write({{"right", right}, {"accuracy", accuracy}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  TrainOptions options;
  return multinode::run(options.program("train_single"), argc, argv,
                        [&](multinode::World& world) { return train(world, options); });
}
