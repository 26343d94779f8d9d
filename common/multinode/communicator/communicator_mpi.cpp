// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/host_communicator.hpp>
#include <multinode/communicator/mpi_types.hpp>

#include <limits>
#include <stdexcept>

namespace multinode {

namespace {

// The communicator's thread also uses blocking calls. With 4 ranks on 2 cores and a computation beside them, they took
// a third of the time of MPI_Iallreduce with MPI_Test and sched_yield: a nonblocking operation advances only inside
// MPI_Test.
class MpiCommunicator : public HostCommunicator {
 public:
  explicit MpiCommunicator(World& world) : HostCommunicator(world), comm_(world) {}
  ~MpiCommunicator() override { stop(); }
  Backend backend() const override { return Backend::mpi; }

 private:
  // MPI's counts are int.
  static int counted(const Block& block) {
    if (block.count <= std::size_t{std::numeric_limits<int>::max()}) return static_cast<int>(block.count);
    throw std::invalid_argument("mpi: " + std::to_string(block.count) +
                                " elements are more than one operation can have, 2147483647: use several operations");
  }

  void do_broadcast(const Block& block, int root) override {
    check(MPI_Bcast(block.data, counted(block), types_.type(block.type), root, comm_.get()));
  }

  void do_all_reduce(const Block& block, Reduction reduction) override {
    check(MPI_Allreduce(MPI_IN_PLACE, block.data, counted(block), types_.type(block.type),
                        types_.operation(block.type, reduction), comm_.get()));
    if (reduction == Reduction::average) divide(block.type, block.data, block.count, size());
  }

  void do_barrier() override { check(MPI_Barrier(comm_.get())); }

  MpiComm comm_;
  MpiTypes types_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi(World& world) { return std::make_unique<MpiCommunicator>(world); }

}  // namespace multinode
