// torch_equality: P ranks train a small network with BatchNorm for a few steps. BatchNorm sees each rank's own
// batch, so P ranks are not one process with a larger batch; what must hold instead, and is checked:
//  - in every step the gradients are the sums of all ranks' own ones, which autograd gives again without the reducer,
//    over the divisor;
//  - in the end all ranks' parameters are the same, bit for bit;
//  - PyTorch's libtorch_cpu.so, which has a Gloo of another version in it, does not take the communicator's calls;
//  - the ranks' running statistics differ until broadcast_buffers(), and are rank 0's afterwards.
// Exit status: 0 all of it holds; 1 otherwise.
//
// The bound. n float numbers g, added in any order (n - 1 roundings), times 1 / divisor (a rounding for the reciprocal
// and one for the product): the error is at most c u / (1 - c u) sum |g| / divisor, c = n + 1, u = 2^-24 (Higham,
// Accuracy and Stability of Numerical Algorithms, 2nd ed., section 3.1), and where numbers are subnormal, half of the
// smallest one for each operation. The sums it is compared with are double: their own error is 2^-29 of that, hence c =
// n + 2.
#include "torch/device.hpp"
#include "torch/distributed_data_parallel.hpp"

#include <multinode/base/program_options.hpp>
#include <multinode/world/program.hpp>

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/transport/tcp/device.h>
#endif

#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <limits>
#include <map>
#include <set>

namespace {

constexpr int steps = 4;
constexpr int accumulating_step = 2;  // has two backward passes
constexpr int planted_step = 1;
const ddp::ReducerOptions buckets{.first_bucket_bytes = 500, .bucket_bytes = 2000};

// Its last layer is registered first, so that gradients become ready in another order than the reducer plans with.
struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t width)
      : head(register_module("head", torch::nn::Linear(width, 10))),
        conv1(register_module("conv1", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3)))),
        bn1(register_module("bn1", torch::nn::BatchNorm2d(8))),
        conv2(register_module("conv2", torch::nn::Conv2d(torch::nn::Conv2dOptions(8, width, 3)))),
        bn2(register_module("bn2", torch::nn::BatchNorm2d(width))) {}
  torch::Tensor forward(const torch::Tensor& images) {
    return head(bn2(conv2(bn1(conv1(images)).relu())).relu().mean({2, 3}));
  }

  torch::nn::Linear head;
  torch::nn::Conv2d conv1;
  torch::nn::BatchNorm2d bn1;
  torch::nn::Conv2d conv2;
  torch::nn::BatchNorm2d bn2;
};
TORCH_MODULE(Net);

enum class Fault { none, missing_average, other_parameter, other_model };
const std::map<std::string, Fault> faults{{"", Fault::none},
                                          {"missing-average", Fault::missing_average},
                                          {"other-parameter", Fault::other_parameter},
                                          {"other-model", Fault::other_model}};

// Sums over the ranks, in double: of each element of `gradients`, and of its absolute values.
struct Sums {
  std::vector<double> values, magnitudes;
  void add(const std::vector<torch::Tensor>& parameters, const std::vector<torch::Tensor>& gradients) {
    std::size_t at = 0;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const torch::Tensor& gradient = gradients[i].defined() ? gradients[i] : torch::zeros_like(parameters[i]);
      const torch::Tensor flat = gradient.to(torch::kFloat64).contiguous().flatten();
      for (const double value : std::span(flat.data_ptr<double>(), static_cast<std::size_t>(flat.numel()))) {
        if (at == values.size()) values.push_back(0), magnitudes.push_back(0);
        values[at] += value;
        magnitudes[at++] += std::abs(value);
      }
    }
  }
};

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
  Net net(fault == Fault::other_model && last ? 17 : 16);
  ddp::DistributedDataParallel parallel(world, *communicator, *net, buckets);
  const auto optimizer = make_sgd(parallel.parameters(), torch::kCPU, 0.9, 1e-5);
  if (fault == Fault::other_parameter && last) {
    const torch::NoGradGuard no_gradients;
    net->parameters()[0].flatten()[0] += 1;
  }

  double ratio = 0;  // the largest of error / bound
  bool right = gloo_is_gloo();
  for (int step = 0; step < steps; ++step) {
    const int passes = step == accumulating_step ? 2 : 1;
    const std::size_t divisor = static_cast<std::size_t>(world.size() * passes);
    Sums sums;
    for (int pass = 1; pass <= passes; ++pass) {
      if (pass < passes)
        parallel.accumulate();
      else
        parallel.begin(fault == Fault::missing_average && step == planted_step ? 1 : divisor);
      const torch::Tensor images = torch::randn({3, 3, 12, 12}), labels = torch::randint(10, {3}, torch::kInt64);
      const torch::Tensor loss = torch::nn::functional::cross_entropy(net->forward(images), labels);
      sums.add(net->parameters(), torch::autograd::grad({loss}, net->parameters(), {}, true, false, true));
      loss.backward();
      parallel.wait();
    }
    communicator->all_reduce(std::span(sums.values));
    communicator->all_reduce(std::span(sums.magnitudes));

    const double c = static_cast<double>(divisor) + 2, u = 0x1p-24;
    std::size_t at = 0;
    for (const torch::Tensor& parameter : net->parameters()) {
      const torch::Tensor flat = parameter.grad().contiguous().flatten();
      for (const float value : std::span(flat.data_ptr<float>(), static_cast<std::size_t>(flat.numel()))) {
        const double mean = sums.values[at] / static_cast<double>(divisor);
        const double bound = c * u / (1 - c * u) * sums.magnitudes[at] / static_cast<double>(divisor) +
                             c * std::numeric_limits<float>::denorm_min();
        ratio = std::max(ratio, std::abs(value - mean) / bound);
        right &= std::isfinite(value);
        ++at;
      }
    }
    parallel.update(*optimizer, 0.01);
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
    std::printf("%s, %d ranks: %zu gradients in %zu buckets; difference/bound %.3g\n",
                std::string(name_of(communicator->backend())).c_str(), world.size(), parallel.parameters().size(),
                parallel.reducer().plan().buckets.size(), ratio);
    std::printf("kinds of parameters: %zu, of buffers: %zu, after broadcast_buffers: %zu\n", parameters.first,
                before.first, sent.first);
  }
  std::fflush(stdout);  // a launcher may end this rank as soon as another one has failed
  right &= ratio <= 1 && parameters.first == 1 && before.first == static_cast<std::size_t>(world.size()) &&
           sent.first == 1 && sent.second == before.second;
  return right ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  std::string plant;
  boost::program_options::options_description known("Options of torch_equality");
  known.add_options()("plant", boost::program_options::value(&plant),
                      "a fault: missing-average (in one step), other-parameter or other-model (on the last rank)");
  const auto validate = [&] {
    if (!faults.contains(plant)) throw multinode::UsageError("--plant: no such fault: '" + plant + "'");
  };
  return multinode::run({"torch_equality", known, common, validate}, argc, argv,
                        [&](multinode::World& world) { return run(world, common, faults.at(plant)); });
}
