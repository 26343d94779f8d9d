#include "ranks_host.hpp"

#include <multinode/communicator/mpi_types.hpp>

#include <climits>
#include <memory>

namespace perf {

namespace {

using multinode::check;

class MpiRanks : public HostRanks {
 public:
  MpiRanks(multinode::World& world, const Usage& usage) : HostRanks(world, usage, "mpi"), comm_(world, group()[0]) {}

  multinode::Backend backend() const override { return multinode::Backend::mpi; }
  std::size_t largest_count() const override { return INT_MAX; }
  bool has_in_place(const Collective& collective) const override { return collective.mpi_in_place; }

  Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) override {
    auto call = call_of<MpiCall>(collective, operation, 0, begin(0, Buffer::in), begin(0, Buffer::both));
    call.count = static_cast<int>(operation.count);
    call.bytes = operation.block_bytes();
    call.type = types_.type(operation.type);
    call.op = types_.operation(operation.type, reduction_of(operation.redop));
    call.comm = comm_.get();
    {
      const auto inside = world().watchdog().enter("MPI_Barrier");
      check(MPI_Barrier(call.comm));
    }
    Samples seconds(1, std::vector<double>(static_cast<std::size_t>(samples)));
    time(collective, seconds[0], calls, 0, [&] { collective.mpi(call); });
    return seconds;
  }

 private:
  multinode::MpiComm comm_;
  multinode::MpiTypes types_;
};

}  // namespace

std::unique_ptr<Ranks> make_mpi_ranks(multinode::World& world, const Usage& usage) {
  if (usage.threads * usage.ranks_per_thread != 1)
    throw multinode::UsageError(
        "-t and -g: MPI has one rank per process: start more with mpirun -n, or use --backend gloo");
  return std::make_unique<MpiRanks>(world, usage);
}

}  // namespace perf
