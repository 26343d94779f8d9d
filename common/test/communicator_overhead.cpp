// Compares the time of a blocking all_reduce with that of the library's own call, in one run: alternating blocks of
// calls, medians. Exit status: 0; 1 if the watchdog and the communicator cost more than --bound percent.
#include <multinode/base/check.hpp>
#include <multinode/base/median.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/communicator.hpp>
#include <multinode/world/program.hpp>
#include <multinode/world/report.hpp>

#ifdef MULTINODE_HAVE_GLOO
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/transport/tcp/device.h>
#include <multinode/communicator/gloo_store.hpp>
#endif
#ifdef MULTINODE_HAVE_MPI
#include <multinode/communicator/mpi.hpp>
#endif

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iostream>

using namespace multinode;
using Clock = std::chrono::steady_clock;

namespace {

std::string fixed(double value, int digits) { return fmt::format("{:.{}f}", value, digits); }

using AllReduce = std::function<void(std::span<float>)>;

#ifdef MULTINODE_HAVE_GLOO
AllReduce plain_gloo(World& world) {
  std::shared_ptr<gloo::transport::Device> device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  auto context = std::make_shared<gloo::rendezvous::Context>(world.rank(), world.size());
  GlooStore store(world.store(), world.timeout());
  context->connectFullMesh(store, device);
  return [context](std::span<float> data) {
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction(static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
    gloo::allreduce(options);
  };
}
#endif

AllReduce plain([[maybe_unused]] World& world, Backend backend) {
#ifdef MULTINODE_HAVE_MPI
  if (backend == Backend::mpi)
    return [](std::span<float> data) {
      check(
          MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD));
    };
#endif
#ifdef MULTINODE_HAVE_GLOO
  if (backend == Backend::gloo) return plain_gloo(world);
#endif
  throw UsageError("--backend must be mpi or gloo, and this build must have it");
}

struct Times {
  double bare, ours, ratio;  // medians; seconds per call
};

// `planted` is added before each of our calls, and must show in the result.
Times measure(Communicator& c, const AllReduce& bare, std::size_t bytes, int blocks, std::chrono::nanoseconds planted) {
  std::vector<float> data(bytes / sizeof(float));  // zeros, and they stay so
  const auto block_of = [&](auto&& call, int calls) {
    c.barrier();
    const auto start = Clock::now();
    for (int i = 0; i < calls; ++i) call();
    return std::chrono::duration<double>(Clock::now() - start).count() / calls;
  };
  const auto call_bare = [&] { bare(data); };
  const auto call_ours = [&] {
    if (planted.count())
      for (const auto end = Clock::now() + planted; Clock::now() < end;) {
      }
    c.all_reduce(std::span(data));
  };

  // Blocks of about 2 ms, of the same number of calls on all ranks.
  double once = block_of(call_bare, 20);
  c.broadcast(std::span(&once, 1), 0);
  const int calls = std::clamp(static_cast<int>(2e-3 / once), 1, 2000);

  std::vector<double> bares, ours, ratios;
  for (int b = 0; b < blocks; ++b) {
    double x = 0, y = 0;
    if (b % 2) x = block_of(call_bare, calls);
    y = block_of(call_ours, calls);
    if (b % 2 == 0) x = block_of(call_bare, calls);
    bares.push_back(x);
    ours.push_back(y);
    ratios.push_back(y / x);
  }
  return {median(bares), median(ours), median(ratios)};
}

}  // namespace

int main(int argc, char** argv) {
  int blocks = 301;
  double bound = INFINITY;
  std::int64_t planted = 0;
  CommonOptions common;
  namespace po = boost::program_options;
  po::options_description options("communicator_overhead");
  options.add_options()("blocks", po::value(&blocks), "number of blocks of each kind, per size")(
      "bound", po::value(&bound), "maximum overhead over the library's own call, in percent")(
      "planted", po::value(&planted), "nanoseconds to waste before each of our calls");
  return run({"communicator_overhead", options, common, [&] { require_range("blocks", blocks, 1, 1000000); }}, argc,
             argv, [&](World& world) {
               const auto communicator = make_communicator(world, parse_backend(common.backend));
               const AllReduce bare = plain(world, communicator->backend());
               std::vector<float> first(1);
               communicator->start_all_reduce(std::span(first)).wait();  // the communicator's thread exists and is idle

               Table table({"bytes", "bare us", "ours us", "ratio"});
               bool within = true;
               for (const std::size_t bytes : {8, 1 << 10, 4 << 10, 1 << 20}) {
                 const Times t = measure(*communicator, bare, bytes, blocks, std::chrono::nanoseconds(planted));
                 within = within && t.ratio <= 1 + bound / 100;
                 table.add({std::to_string(bytes), fixed(t.bare * 1e6, 2), fixed(t.ours * 1e6, 2), fixed(t.ratio, 4)});
               }
               if (world.rank() == 0) {
                 std::cout << name_of(communicator->backend()) << ", " << world.size()
                           << " ranks, all_reduce, medians of " << blocks << " blocks:\n";
                 table.print(std::cout);
                 if (!within) std::cout << "the overhead exceeds the bound of " << bound << " % in rank 0's medians\n";
               }
               return within || world.rank() != 0 ? exit_right : exit_wrong;
             });
}
