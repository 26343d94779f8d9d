#include "ranks_host.hpp"

#include <multinode/mpi_types.hpp>

#include <climits>

namespace perf {

namespace {

using multinode::check;

class MpiRanks : public HostRanks {
 public:
  MpiRanks(multinode::World& world, const Usage& usage)
      : HostRanks(world, 1, usage, "mpi"), calls_(usage.mpi_calls), comm_(world) {}

  multinode::Backend backend() const override { return multinode::Backend::mpi; }
  std::size_t largest_count() const override { return INT_MAX; }
  bool has_in_place(const Collective& collective) const override {
    return collective.mpi_in_place && (calls_ == MpiCalls::blocking || collective.mpi_start_in_place);
  }

  std::string refusal(const Collective& collective, Redop redop) const override {
    if (redop == Redop::avg) return "MPI has no average: use -o sum";
    if (redop == Redop::mulsum) return "MPI has no sum with factors: use -o sum";
    if (calls_ == MpiCalls::nonblocking && !collective.mpi_start) return "--mpi-calls: it has no non-blocking form";
    if (calls_ == MpiCalls::persistent && !collective.mpi_prepare)
      return "--mpi-calls: this MPI has no persistent form of it";
    return "";
  }

  Samples measure(const Collective& collective, const Operation& operation, int samples, int calls) override {
    const MpiCall call = call_after_barrier(collective, operation);
    Samples seconds(1, std::vector<double>(static_cast<std::size_t>(samples)));
    MpiRequests requests{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    switch (calls_) {
      case MpiCalls::blocking:
        time(collective, seconds[0], calls, true, [&] { collective.mpi(call); });
        break;
      case MpiCalls::nonblocking:
        time(collective, seconds[0], calls, true, [&] {
          collective.mpi_start(call, requests);
          check(MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE));
        });
        break;
      case MpiCalls::persistent:
        collective.mpi_prepare(call, requests);
        time(collective, seconds[0], calls, true, [&] {
          check(MPI_Startall(requests[1] == MPI_REQUEST_NULL ? 1 : 2, requests.data()));
          check(MPI_Waitall(2, requests.data(), MPI_STATUSES_IGNORE));
        });
        for (MPI_Request& request : requests)
          if (request != MPI_REQUEST_NULL) check(MPI_Request_free(&request));
        break;
    }
    return seconds;
  }

  double measure_bare_loop(const Collective& collective, const Operation& operation, int calls) override {
    const MpiCall call = call_after_barrier(collective, operation);
    const auto inside = world().watchdog().enter(collective.name);
    const auto start = std::chrono::steady_clock::now();
    collective.mpi_bare_loop(call, calls);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / calls;
  }

 private:
  MpiCall call_after_barrier(const Collective& collective, const Operation& operation) {
    auto call = call_of<MpiCall>(collective, operation, 0, begin(0, Buffer::in), begin(0, Buffer::both));
    call.count = static_cast<int>(operation.count);
    call.bytes = operation.count * multinode::size_of(operation.type);
    call.type = types_.type(operation.type);
    call.op = types_.operation(operation.type, reduction_of(operation.redop));
    call.comm = comm_.get();
    const auto inside = world().watchdog().enter("MPI_Barrier");
    check(MPI_Barrier(call.comm));
    return call;
  }

  MpiCalls calls_;
  multinode::MpiComm comm_;
  multinode::MpiTypes types_;
};

}  // namespace

std::unique_ptr<Ranks> make_mpi_ranks(multinode::World& world, const Usage& usage) {
  if (usage.threads * usage.ranks_per_thread != 1)
    throw multinode::UsageError(
        "-t and -g: MPI has one rank a process: start more with mpirun -n, or use --backend gloo");
  return std::make_unique<MpiRanks>(world, usage);
}

}  // namespace perf
