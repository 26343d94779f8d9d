// synthetic_benchmark: measures the images per second of data-parallel training of a residual network. Options and
// output are those of Horovod's pytorch_synthetic_benchmark.py.
// Exit status: 0 all ranks have the same parameters; 1 not, failed or timed out; 2 bad command line or environment; 77
// no GPU for --backend nccl.
// SPDX-License-Identifier: Apache-2.0
#include "torch/device.hpp"
#include "torch/distributed_data_parallel.hpp"
#include "torch/resnet.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <iostream>
#include <numeric>
#include <set>

namespace {

constexpr std::int64_t classes = 1000;

struct Options {
  multinode::CommonOptions common;
  std::string model = "resnet50";
  std::int64_t batch_size = 32;
  std::int64_t image_size = 224;
  int num_warmup_batches = 10;
  int num_batches_per_iter = 10;
  int num_iters = 10;
  bool fp16_allreduce = false;
  bool channels_last = false;

  multinode::Program program() {
    namespace po = boost::program_options;
    po::options_description known("Options of synthetic_benchmark");
    known.add_options()                                                                                    //
        ("model", po::value(&model)->default_value(model), std::string(model::resnet_names).c_str())       //
        ("batch-size", po::value(&batch_size)->default_value(batch_size), "images per batch and process")  //
        ("image-size", po::value(&image_size)->default_value(image_size), "side of an image, pixels")      //
        ("num-warmup-batches", po::value(&num_warmup_batches)->default_value(num_warmup_batches),
         "batches before the timer starts")  //
        ("num-batches-per-iter", po::value(&num_batches_per_iter)->default_value(num_batches_per_iter),
         "batches timed together")                                                                               //
        ("num-iters", po::value(&num_iters)->default_value(num_iters), "number of timed measurements")           //
        ("fp16-allreduce", po::bool_switch(&fp16_allreduce), "send gradients as 16-bit floating-point numbers")  //
        ("channels-last", po::bool_switch(&channels_last),
         "store the channels of a pixel side by side: faster for large images, slower for small ones");
    return {"synthetic_benchmark", known, common, [this] { validate(); }};
  }

  void validate() {
    using multinode::require_range;
    model::resnet_layout(model);
    // The deepest layers see one pixel of a small image: the variance over a batch of one would be that of one number.
    require_range<std::int64_t>("--batch-size", batch_size, 2, 1'000'000);
    require_range<std::int64_t>("--image-size", image_size, 1, 10'000);
    require_range("--num-warmup-batches", num_warmup_batches, 0, 1'000'000);
    require_range("--num-batches-per-iter", num_batches_per_iter, 1, 1'000'000);
    require_range("--num-iters", num_iters, 1, 1'000'000);
    multinode::parse_backend(common.backend);
  }
};

int run(multinode::World& world, const Options& options) {
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  const torch::Device device = choose_device(world, *communicator);
  const char* const unit = device.is_cpu() ? "CPU" : "GPU";
  if (options.fp16_allreduce && !device.is_cpu())
    throw multinode::UsageError("--fp16-allreduce: only on CPUs, with --backend mpi or gloo");
  const bool is_rank_0 = world.rank() == 0;
  const auto say = [is_rank_0](const std::string& line) {
    if (is_rank_0) std::cout << line << std::endl;
  };
  const double ranks = world.size();
  multinode::JsonLines json(is_rank_0 ? options.common.json : "");

  torch::manual_seed(options.common.seed);
  model::ResNet net(model::resnet_layout(options.model), classes);
  net->to(device);
  const torch::MemoryFormat format =
      options.channels_last ? torch::MemoryFormat::ChannelsLast : torch::MemoryFormat::Contiguous;
  for (torch::Tensor& parameter : net->parameters())
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(format));
  ddp::ReducerOptions reducer;
  if (options.fp16_allreduce) reducer.wrap = ddp::compressed(ddp::Compression::float16);
  ddp::DistributedDataParallel parallel(world, *communicator, *net, reducer);
  const auto optimizer = make_sgd(parallel.parameters(), device);
  torch::manual_seed(options.common.seed + static_cast<std::uint64_t>(world.rank()));
  const torch::Tensor images =
      torch::randn({options.batch_size, 3, options.image_size, options.image_size}).contiguous(format).to(device);
  const torch::Tensor labels = torch::randint(classes, {options.batch_size}, torch::kInt64).to(device);

  const auto train = [&](int batches) {
    for (int i = 0; i < batches; ++i)
      parallel.train([&] { return torch::nn::functional::cross_entropy(net->forward(images), labels); }, *optimizer,
                     0.01 * ranks);
    communicator->synchronize();  // a GPU's work, which the host did not wait for
  };

  if (is_rank_0) json.write(multinode::fingerprint(world));
  say(fmt::format("Model: {}\nBatch size: {}\nNumber of {}s: {}\nRunning warmup...", options.model, options.batch_size,
                  unit, world.size()));
  train(options.num_warmup_batches);
  say("Running benchmark...");
  std::vector<double> speeds;  // of this rank: images a second
  for (int i = 0; i < options.num_iters; ++i) {
    const auto start = std::chrono::steady_clock::now();
    train(options.num_batches_per_iter);
    const std::chrono::duration<double> time = std::chrono::steady_clock::now() - start;
    speeds.push_back(static_cast<double>(options.batch_size * options.num_batches_per_iter) / time.count());
    say(fmt::format("Iter #{}: {:.1f} img/sec per {}", i, speeds.back(), unit));
  }

  const double mean = std::accumulate(speeds.begin(), speeds.end(), 0.0) / static_cast<double>(speeds.size());
  double squares = 0;
  for (const double speed : speeds) squares += (speed - mean) * (speed - mean);
  const double interval = 1.96 * std::sqrt(squares / static_cast<double>(speeds.size()));
  const std::vector<std::string> hashes = ddp::hashes_of_ranks(world, HostBlocks(parallel.parameters(), device).here());
  const bool right = std::set(hashes.begin(), hashes.end()).size() == 1;
  say(fmt::format("Img/sec per {}: {:.1f} +-{:.1f}\nTotal img/sec on {} {}(s): {:.1f} +-{:.1f}", unit, mean, interval,
                  world.size(), unit, ranks * mean, ranks * interval));
  say(right ? "RIGHT: the same parameters on every rank" : "WRONG: the ranks' parameters differ");
  json.write({{"model", options.model},
              {"batch_size", options.batch_size},
              {"image_size", options.image_size},
              {"ranks", world.size()},
              {"images_per_second", mean},
              {"interval", interval},
              {"right", right}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
