// torch_equality: P ranks make a few steps of a small network. All numbers are small integers, so sums are exact in any
// order, and it is checked that
//  - in every step the gradients are the sums of all ranks' own ones, which autograd gives again without the reducer,
//    over the divisor;
//  - all ranks have rank 0's parameters, bit for bit;
//  - PyTorch's libtorch_cpu.so, which has a Gloo of another version in it, does not take the communicator's calls;
//  - BatchNorm's running statistics, each rank's own, differ until broadcast_buffers(), and are rank 0's afterwards.
// Exit status: 0 all of it holds; 1 otherwise.
#include "torch/distributed_data_parallel.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/transport/tcp/device.h>
#endif

#include <dlfcn.h>

#include <cstdio>
#include <map>
#include <set>

namespace {

constexpr int steps = 4;
constexpr int accumulating_step = 2;  // has two backward passes
constexpr int planted_step = 1;
const ddp::ReducerOptions buckets{.first_bucket_bytes = 200, .bucket_bytes = 300};

// Its last layer is registered first, so that gradients become ready in another order than the reducer plans with.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width)
      : head(register_module("head", torch::nn::Linear(width, 10))),
        body(register_module("body", torch::nn::Linear(5, width))),
        norm(register_module("norm", torch::nn::BatchNorm1d(torch::nn::BatchNorm1dOptions(5).affine(false)))) {}
  torch::Tensor forward(const torch::Tensor& inputs) {
    norm(inputs);  // for its statistics
    return head(body(inputs));
  }

  torch::nn::Linear head, body;
  torch::nn::BatchNorm1d norm;
};
TORCH_MODULE(Net);

enum class Fault { none, missing_average, other_parameter };
const std::map<std::string, Fault> faults{
    {"", Fault::none}, {"missing-average", Fault::missing_average}, {"other-parameter", Fault::other_parameter}};

bool gloo_is_gloo() {
#ifdef MULTINODE_HAVE_GLOO
  Dl_info info{};
  dladdr(reinterpret_cast<const void*>(&gloo::transport::tcp::CreateDevice), &info);
  if (std::string(info.dli_fname).find("libgloo") != std::string::npos) return true;
  std::printf("calls of Gloo go to %s\n", info.dli_fname);
  return false;
#else
  return true;
#endif
}

int run(multinode::World& world, const multinode::CommonOptions& common, Fault fault) {
  torch::set_num_threads(1);
  const auto communicator = multinode::make_cpu_communicator(world, multinode::parse_backend(common.backend));
  const bool last = world.rank() == world.size() - 1;

  torch::manual_seed(common.seed + static_cast<std::uint64_t>(world.rank()));  // rank 0's parameters are to prevail
  Net net(16);
  {
    const torch::NoGradGuard no_gradients;
    for (torch::Tensor& parameter : net->parameters()) parameter.copy_(torch::randint(-2, 3, parameter.sizes()));
  }
  ddp::DistributedDataParallel parallel(world, *communicator, *net, buckets);
  if (fault == Fault::other_parameter && last) {
    const torch::NoGradGuard no_gradients;
    net->parameters()[0].flatten()[0] += 1;
  }

  std::size_t elements = 0, wrong = 0;
  for (int step = 0; step < steps; ++step) {
    const int passes = step == accumulating_step ? 2 : 1;
    const std::size_t divisor = static_cast<std::size_t>(world.size() * passes);
    std::vector<double> sums;  // of each gradient's elements, over passes and ranks
    for (int pass = 1; pass <= passes; ++pass) {
      if (pass < passes)
        parallel.accumulate();
      else
        parallel.begin(fault == Fault::missing_average && step == planted_step ? 1 : divisor);
      const torch::Tensor loss = net->forward(torch::randint(-3, 4, {3, 5}).to(torch::kFloat32)).sum();
      std::size_t at = 0;
      for (const torch::Tensor& gradient : torch::autograd::grad({loss}, net->parameters(), {}, true)) {
        const torch::Tensor flat = gradient.to(torch::kFloat64).contiguous().flatten();
        for (const double value : std::span(flat.data_ptr<double>(), static_cast<std::size_t>(flat.numel()))) {
          if (at == sums.size()) sums.push_back(0);
          sums[at++] += value;
        }
      }
      loss.backward();
      parallel.wait();
    }
    communicator->all_reduce(std::span(sums));

    std::size_t at = 0;
    for (const torch::Tensor& parameter : net->parameters()) {
      const torch::Tensor flat = parameter.grad().contiguous().flatten();
      for (const float value : std::span(flat.data_ptr<float>(), static_cast<std::size_t>(flat.numel())))
        wrong += value != static_cast<float>(sums[at++]) * (1 / static_cast<float>(divisor));
    }
    elements += at;
  }
  const auto different = [&](const std::vector<ddp::NamedBlock>& blocks) {
    const std::vector<std::string> hashes = ddp::hashes_of_ranks(world, blocks);
    return std::pair(std::set(hashes.begin(), hashes.end()).size(), hashes[0]);
  };
  const auto parameters = different(ddp::parameters_of(*net));
  const auto before = different(ddp::buffers_of(*net));
  parallel.broadcast_buffers();
  const auto sent = different(ddp::buffers_of(*net));
  if (world.rank() == 0) {
    std::printf("%s, %d ranks: %zu gradients in %zu buckets; %zu of %zu elements wrong\n",
                std::string(name_of(communicator->backend())).c_str(), world.size(), parallel.parameters().size(),
                parallel.reducer().plan().buckets.size(), wrong, elements);
    std::printf("kinds of parameters: %zu, of buffers: %zu, after broadcast_buffers: %zu\n", parameters.first,
                before.first, sent.first);
  }
  std::fflush(stdout);  // a launcher may end this rank as soon as another one has failed
  const bool right = gloo_is_gloo() && wrong == 0 && parameters.first == 1 &&
                     before.first == static_cast<std::size_t>(world.size()) && sent.first == 1 &&
                     sent.second == before.second;
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  std::string plant;
  boost::program_options::options_description known("Options of torch_equality");
  known.add_options()("plant", boost::program_options::value(&plant),
                      "a fault: missing-average (in one step) or other-parameter (on the last rank)");
  const auto validate = [&] {
    if (!faults.contains(plant)) throw multinode::UsageError("--plant: no such fault: '" + plant + "'");
  };
  return multinode::run({"torch_equality", known, common, validate}, argc, argv,
                        [&](multinode::World& world) { return run(world, common, faults.at(plant)); });
}
