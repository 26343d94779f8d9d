// resnet: trains a residual network on CIFAR-10's photographs, or on synthetic images to measure its speed, with
// libtorch's layers and gradients, which this project's reducer averages over the ranks.
// Exit status: 0 all ranks have the same parameters; 1 not, failed or timed out; 2 bad command line or environment; 77
// no GPU for --backend nccl.
// SPDX-License-Identifier: Apache-2.0
#include "torch/resnet.hpp"
#include "data/cifar10.hpp"
#include "ddp/checkpoint.hpp"
#include "ddp/sampler.hpp"
#include "torch/device.hpp"
#include "torch/distributed_data_parallel.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#include <fmt/format.h>
#include <boost/program_options.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <iostream>
#include <numeric>
#include <optional>
#include <set>

namespace {

constexpr std::int64_t synthetic_classes = 1000;
constexpr std::size_t test_batch = 128;

struct Options {
  multinode::CommonOptions common;
  std::string arch = "resnet50";
  int num_epochs = 100;
  std::int64_t batch_size = 256;
  double learning_rate = 0.1;
  std::string folder = "cifar-10-batches-bin";
  bool use_syn = false;
  std::int64_t steps_syn = 20;
  std::int64_t image_size = 224;
  std::string model_dir = "saved_models";
  std::string model_filename = "resnet_distributed.checkpoint";
  int save_every = 10;
  bool resume = false;

  multinode::Program program() {
    namespace po = boost::program_options;
    po::options_description known("Options of resnet");
    known.add_options()                                                                                               //
        ("arch", po::value(&arch)->default_value(arch), std::string(model::resnet_names).c_str())                     //
        ("num-epochs", po::value(&num_epochs)->default_value(num_epochs), "passes over all images")                   //
        ("batch-size", po::value(&batch_size)->default_value(batch_size), "images per step and process")              //
        ("learning-rate", po::value(&learning_rate)->default_value(learning_rate), "of stochastic gradient descent")  //
        ("data", po::value(&folder)->default_value(folder)->value_name("DIR"),
         "folder with CIFAR-10's binary version, data_batch_1.bin ...")                                         //
        ("use-syn", po::bool_switch(&use_syn), "train on synthetic images instead")                             //
        ("steps-syn", po::value(&steps_syn)->default_value(steps_syn), "steps per epoch with --use-syn")        //
        ("image-size", po::value(&image_size)->default_value(image_size), "side of a synthetic image, pixels")  //
        ("model-dir", po::value(&model_dir)->default_value(model_dir)->value_name("DIR"),
         "folder of the checkpoint; created if it does not exist")                                               //
        ("model-filename", po::value(&model_filename)->default_value(model_filename), "file of the checkpoint")  //
        ("save-every", po::value(&save_every)->default_value(save_every),
         "epochs between two evaluations and checkpoints; the last epoch always has one")  //
        ("resume", po::bool_switch(&resume), "resume from the checkpoint, with its seed");
    return {"resnet", known, common, [this] { validate(); }};
  }

  void validate() {
    using multinode::require_range;
    model::resnet_layout(arch);
    require_range("--num-epochs", num_epochs, 1, 100'000);
    // The deepest layers see one pixel of a small image: the variance over a batch of one would be that of one number.
    require_range<std::int64_t>("--batch-size", batch_size, 2, 1'000'000);
    require_range("--learning-rate", learning_rate, 0.0, 1e6);
    require_range<std::int64_t>("--steps-syn", steps_syn, 1, 1'000'000'000);
    require_range<std::int64_t>("--image-size", image_size, 1, 10'000);
    require_range("--save-every", save_every, 1, 100'000);
    multinode::parse_backend(common.backend);
  }
};

struct Tensors {
  torch::Tensor images;  // batch x 3 x side x side
  torch::Tensor labels;  // batch
};

// On the CPU they share the batch's memory.
Tensors tensors_of(data::Batch<float>& batch, torch::Device device) {
  const auto side = static_cast<std::int64_t>(data::cifar10_side);
  return {torch::from_blob(batch.inputs.data(), {static_cast<std::int64_t>(batch.size()), 3, side, side}).to(device),
          torch::from_blob(batch.labels.data(), {static_cast<std::int64_t>(batch.size())}, torch::kUInt8)
              .to(device, torch::kInt64)};
}

// One batch of noise, which every step learns again: it costs no time to make.
Tensors synthetic(const Options& options, std::uint64_t seed, int rank, torch::Device device) {
  torch::manual_seed(seed + static_cast<std::uint64_t>(rank));
  return {torch::randn({options.batch_size, 3, options.image_size, options.image_size}).to(device),
          torch::randint(synthetic_classes, {options.batch_size}, torch::kInt64).to(device)};
}

// The part of the test images that are classified correctly; each rank looks at its share of them.
double evaluate(multinode::Communicator& communicator, torch::Device device, model::ResNet& net,
                const data::Cifar10Images& images) {
  const torch::NoGradGuard no_gradients;
  net->eval();
  const ddp::Range part = ddp::part_of(images.size(), static_cast<std::size_t>(communicator.rank()),
                                       static_cast<std::size_t>(communicator.size()));
  double right = 0;
  data::Batch<float> batch;
  for (std::size_t begin = part.begin; begin < part.end; begin += test_batch) {
    std::vector<std::uint32_t> samples(std::min(test_batch, part.end - begin));
    std::iota(samples.begin(), samples.end(), static_cast<std::uint32_t>(begin));
    data::gather(images, samples, {}, batch);
    const Tensors tensors = tensors_of(batch, device);
    right += net->forward(tensors.images).argmax(1).eq(tensors.labels).sum().item<double>();
  }
  net->train();
  return sum_over_ranks(communicator, device, right) / static_cast<double>(images.size());
}

int run(multinode::World& world, const Options& options) {
  using Clock = std::chrono::steady_clock;
  const auto communicator = multinode::make_communicator(world, multinode::parse_backend(options.common.backend));
  const torch::Device device = choose_device(world, *communicator);
  const int rank = world.rank();
  const std::size_t global_batch =
      static_cast<std::size_t>(options.batch_size) * static_cast<std::size_t>(world.size());
  std::uint64_t seed = options.common.seed;
  std::optional<data::Cifar10> photographs;
  if (!options.use_syn) photographs = data::read_cifar10(options.folder);
  if (photographs && photographs->train.size() < global_batch)
    throw multinode::UsageError("--batch-size " + std::to_string(options.batch_size) + ": " +
                                std::to_string(world.size()) + " processes need " + std::to_string(global_batch) +
                                " images a step, and there are " + std::to_string(photographs->train.size()));

  torch::manual_seed(seed);
  model::ResNet net(model::resnet_layout(options.arch),
                    photographs ? static_cast<std::int64_t>(data::cifar10_classes) : synthetic_classes);
  net->to(device);
  ddp::DistributedDataParallel parallel(world, *communicator, *net);
  const auto optimizer = make_sgd(parallel.parameters(), device, 0.9, 1e-5);

  std::string from = "starts at epoch 0";
  std::vector<ddp::NamedBlock> model = ddp::parameters_of(*net);
  for (const ddp::NamedBlock& block : ddp::buffers_of(*net)) model.push_back(block);
  std::vector<ddp::NamedBlock> everything = model;
  for (const ddp::NamedBlock& block : optimizer->state()) everything.push_back(block);
  const std::filesystem::path file = std::filesystem::path(options.model_dir) / options.model_filename;
  const std::filesystem::path before = file.string() + ".before";  // the checkpoint before it
  std::optional<ddp::CheckpointLock> lock;                         // on rank 0
  nlohmann::json same = nlohmann::json::object();
  if (rank == 0) {
    if (!options.resume) multinode::make_folders(options.model_dir);
    lock.emplace(file, file.string() + ".lock");
    if (photographs)
      same["the data set of CRC-32"] = ddp::crc32_of({photographs->train.pixels, photographs->train.labels});
  }
  int first_epoch = 0;
  if (options.resume) {
    std::vector<std::filesystem::path> files{file, before};
    std::erase_if(files, [](const auto& one) { return !exists(symlink_status(one)); });
    if (files.empty()) files = {file};  // for its error
    const HostBlocks blocks(everything, device);
    const auto [state, path] = ddp::load_checkpoint(world, files, blocks.here(), same);
    blocks.send();
    broadcast_parameters(world, *communicator, everything);
    first_epoch = state.at("epoch");
    seed = state.at("seed");
    from = fmt::format("resumes from {} at epoch {}", path.string(), first_epoch);
  }

  multinode::JsonLines json(rank == 0 ? options.common.json : "");
  if (rank == 0) json.write(multinode::fingerprint(world));
  const auto say = [&](const std::string& line) {
    if (rank == 0) std::cout << line << std::endl;
  };
  say(options.arch + ", " + parallel.reducer().summary(*communicator) + "; " + from);

  // Every batch is full: BatchNorm would find no variance in a last one of a single image.
  std::optional<ddp::DistributedSampler> sampler;
  if (photographs)
    sampler.emplace(photographs->train.size(), global_batch, rank, world.size(), seed, ddp::Remainder::drop);
  const std::size_t steps = photographs ? sampler->steps() : static_cast<std::size_t>(options.steps_syn);
  const Tensors noise = photographs ? Tensors{} : synthetic(options, seed, rank, device);

  for (int epoch = first_epoch; epoch < options.num_epochs; ++epoch) {
    const auto start = Clock::now();
    const data::Augmentation augmentation{seed, static_cast<std::uint32_t>(epoch)};
    if (photographs) sampler->set_epoch(augmentation.epoch);
    data::Batch<float> samples;
    double loss = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      if (photographs) data::gather(photographs->train, sampler->local_batch(step), augmentation, samples);
      const Tensors batch = photographs ? tensors_of(samples, device) : noise;
      const torch::Tensor mean =
          parallel.train([&] { return torch::nn::functional::cross_entropy(net->forward(batch.images), batch.labels); },
                         *optimizer, options.learning_rate);
      communicator->synchronize();  // a GPU's work ends within the deadline, or names who is late
      const auto here = mean.item<double>();
      if (!std::isfinite(here))
        throw std::runtime_error(fmt::format(
            "the loss is {} in step {} of epoch {}; a smaller --learning-rate may help", here, step + 1, epoch));
      loss += here;
    }
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    const double speed = static_cast<double>(steps * global_batch) / seconds;
    loss = sum_over_ranks(*communicator, device, loss) / (static_cast<double>(steps) * world.size());
    nlohmann::json line{{"epoch", epoch}, {"loss", loss}, {"seconds", seconds}, {"samples_per_second", speed}};
    say(fmt::format("Epoch: {}, loss: {:.4f}, samples_per_sec: {:.4f}", epoch, loss, speed));

    if ((epoch + 1) % options.save_every == 0 || epoch + 1 == options.num_epochs) {
      parallel.broadcast_buffers();
      if (photographs) {
        const double accuracy = evaluate(*communicator, device, net, photographs->test);
        line["accuracy"] = accuracy;
        say(fmt::format("Epoch: {}, Accuracy: {:.4f}", epoch, accuracy));
      }
      if (rank == 0) {
        if (std::filesystem::exists(file)) std::filesystem::rename(file, before);
        nlohmann::json state{{"program", "resnet"}, {"epoch", epoch + 1}, {"seed", seed}};
        state.update(same);
        ddp::write_checkpoint(file, state, HostBlocks(everything, device).here());
      }
    }
    if (rank == 0) json.write(line);
  }

  const std::vector<std::string> hashes = ddp::hashes_of_ranks(world, HostBlocks(model, device).here());
  const bool right = std::set(hashes.begin(), hashes.end()).size() == 1;
  for (std::size_t r = 0; r < hashes.size() && !right; ++r)
    say("parameters: " + hashes[r] + " on rank " + std::to_string(r));
  say(right ? "RIGHT: parameters " + hashes[0] + " on every rank" : "WRONG: the ranks' parameters differ");
  if (rank == 0) json.write({{"right", right}, {"parameters", hashes[0]}});
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  return multinode::run(options.program(), argc, argv, [&](multinode::World& world) { return run(world, options); });
}
