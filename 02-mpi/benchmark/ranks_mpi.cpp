#include "ranks_host.hpp"

#include <multinode/communicator/mpi_types.hpp>

#include <climits>
#include <memory>

namespace perf {

namespace {

using multinode::check;

class MpiRanks : public HostRanks {
 public:
  explicit MpiRanks(multinode::World& world) : HostRanks(world, 1), comm_(world) {}

  multinode::Backend backend() const override { return multinode::Backend::mpi; }
  std::size_t largest_count() const override { return INT_MAX; }
  bool has_in_place(const Collective& collective) const override { return collective.mpi_in_place; }

  Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) override {
    auto call = call_of<MpiCall>(collective, operation, 0, begin(0, Buffer::in), begin(0, Buffer::both));
    call.type = types_.type(operation.type);
    call.sum = types_.operation(operation.type, multinode::Reduction::sum);
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

std::unique_ptr<Ranks> make_mpi_ranks(multinode::World& world, int local) {
  if (local != 1)
    throw multinode::UsageError("-g: MPI has one rank per process: start more with mpirun -n, or use --backend gloo");
  return std::make_unique<MpiRanks>(world);
}

}  // namespace perf
