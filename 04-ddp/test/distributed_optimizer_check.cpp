// distributed_optimizer_check: ranks that begin with parameters and momenta of their own take steps through a
// DistributedOptimizer, some of two passes; all of them must end where rank 0, given all gradients, ends alone. Every
// number is a small multiple of a power of 2, so that nothing is rounded and the answer is exact.
// Exit status: 0 so it is, 1 not so.
#include "ddp/distributed_optimizer.hpp"

#include <multinode/program.hpp>
#include <multinode/program_options.hpp>

#include <cstdio>
#include <numeric>

namespace {

constexpr std::size_t counts[] = {5, 1, 9}, total = 15;
constexpr double rate = 0.25, momentum = 0.5;
constexpr int steps = 4;

double gradient(int rank, int step, int pass, std::size_t element) {
  return static_cast<double>((rank * 7 + step * 3 + pass * 5 + static_cast<int>(element)) % 16) - 8;
}

class Sgd : public model::Sgd<double> {
 public:
  using model::Sgd<double>::Sgd;
  void begin_step() override { ++steps_begun; }
  int steps_begun = 0;
};

struct Model {
  std::vector<double> values = std::vector<double>(total);
  std::vector<ddp::NamedBlock> parameters() {
    std::vector<ddp::NamedBlock> named;
    std::span<double> left = values;
    for (const std::size_t count : counts) {
      named.push_back({"parameter " + std::to_string(named.size()), {count}, left.first(count)});
      left = left.subspan(count);
    }
    return named;
  }
  // Rank r's own start: other parameters, and momentum from a step of its own.
  void begin(int rank, model::Optimizer<double>& optimizer) {
    std::iota(values.begin(), values.end(), 100.0 * rank);
    std::vector<double> own(total);
    for (std::size_t i = 0; i < total; ++i) own[i] = gradient(rank, -1, 0, i) + 8;
    std::size_t at = 0;
    optimizer.begin_step();
    for (std::size_t i = 0; i < std::size(counts); at += counts[i++])
      optimizer.update(i, std::span(values).subspan(at, counts[i]), std::span(own).subspan(at, counts[i]), rate);
  }
};

int run(multinode::World& world, const multinode::CommonOptions& common) {
  const auto communicator = make_cpu_communicator(world, multinode::parse_backend(common.backend));
  Model model, alone;
  Sgd sgd(model.parameters(), momentum), its_sgd(alone.parameters(), momentum);
  model.begin(world.rank(), sgd);
  alone.begin(0, its_sgd);

  std::vector<double> storage(total);
  ddp::DistributedOptimizer<double> optimizer(world, *communicator, sgd, model.parameters(), storage,
                                              {.first_bucket_bytes = 40, .bucket_bytes = 40});
  ddp::Reducer<double>& reducer = optimizer.reducer();
  optimizer.broadcast();
  for (int step = 0; step < steps; ++step) {
    const int passes = step % 2 + 1;
    for (int pass = 0; pass < passes; ++pass) {
      if (pass + 1 < passes)
        reducer.accumulate();
      else
        reducer.begin(4);
      std::size_t at = 0;
      for (std::size_t i = 0; i < std::size(counts); ++i) {
        for (double& element : reducer.gradient(i))
          element = (reducer.adds() ? element : 0) + gradient(world.rank(), step, pass, at++);
        reducer.mark_ready(i);
      }
      if (pass + 1 < passes) reducer.wait();
    }
    std::size_t at = 0;
    optimizer.begin_step();
    its_sgd.begin_step();
    for (std::size_t i = 0; i < std::size(counts); at += counts[i++]) {
      optimizer.update(i, std::span(model.values).subspan(at, counts[i]), reducer.gradient(i), rate);
      std::vector<double> mean(counts[i]);
      for (std::size_t j = 0; j < counts[i]; ++j)
        for (int rank = 0; rank < world.size(); ++rank)
          for (int pass = 0; pass < passes; ++pass) mean[j] += gradient(rank, step, pass, at + j) / 4;
      its_sgd.update(i, std::span(alone.values).subspan(at, counts[i]), mean, rate);
    }
  }
  for (std::size_t i = 0; i < total; ++i)
    if (model.values[i] != alone.values[i]) {
      std::fprintf(stderr, "rank %d: element %zu is %g, not %g\n", world.rank(), i, model.values[i], alone.values[i]);
      return multinode::exit_wrong;
    }
  return sgd.steps_begun == its_sgd.steps_begun ? multinode::exit_right : multinode::exit_wrong;
}

}  // namespace

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  boost::program_options::options_description none;
  return multinode::run({"distributed_optimizer_check", none, common}, argc, argv,
                        [&](multinode::World& world) { return run(world, common); });
}
