// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/communicator_backends.hpp>
#include <multinode/communicator/host_communicator.hpp>
#include <multinode/communicator/mpi_types.hpp>

#include <algorithm>

namespace multinode {

namespace {

// The communicator's thread also uses blocking calls. With 4 ranks on 2 cores and a computation beside them, they took
// a third of the time of MPI_Iallreduce with MPI_Test and sched_yield: a nonblocking operation advances only inside
// MPI_Test.
class MpiCommunicator : public HostCommunicator {
 public:
  MpiCommunicator(World& world, std::size_t largest_count)
      : HostCommunicator(world), largest_count_(largest_count), comm_(world) {}
  ~MpiCommunicator() override { stop(); }
  Backend backend() const override { return Backend::mpi; }

 private:
  MPI_Datatype type(DataType type) const { return types_.type(type); }
  MPI_Op operation(DataType type, Reduction reduction) const { return types_.operation(type, reduction); }

  // Calls function(data, int count) for pieces that fit MPI's int counts: once, except for huge blocks.
  template <class Byte, class Function>
  void in_pieces(Byte* data, std::size_t count, DataType type, Function&& function) const {
    for (; count > largest_count_; count -= largest_count_) {
      function(static_cast<void*>(data), static_cast<int>(largest_count_));
      data += largest_count_ * size_of(type);
    }
    function(static_cast<void*>(data), static_cast<int>(count));
  }
  static std::byte* bytes(const void* data) { return static_cast<std::byte*>(const_cast<void*>(data)); }
  bool fits(std::size_t count) const { return count <= largest_count_; }

  void do_broadcast(const Block& block, int root) override {
    in_pieces(bytes(block.data), block.count, block.type,
              [&](void* data, int count) { check(MPI_Bcast(data, count, type(block.type), root, comm_.get())); });
  }

  void do_all_reduce(const Block& block, Reduction reduction) override {
    if (!fits(block.count) || reduction == Reduction::average) return all_reduce_the_long_way(block, reduction);
    check(MPI_Allreduce(MPI_IN_PLACE, block.data, static_cast<int>(block.count), type(block.type),
                        operation(block.type, reduction), comm_.get()));
  }
  [[gnu::noinline]] void all_reduce_the_long_way(const Block& block, Reduction reduction) {
    in_pieces(bytes(block.data), block.count, block.type, [&](void* data, int count) {
      check(MPI_Allreduce(MPI_IN_PLACE, data, count, type(block.type), operation(block.type, reduction), comm_.get()));
    });
    if (reduction == Reduction::average) divide(block.type, block.data, block.count, size());
  }

  void do_reduce_scatter(const ConstBlock& in, const Block& out, Reduction reduction) override {
    const MPI_Op op = operation(in.type, reduction);
    if (fits(in.count)) {
      check(MPI_Reduce_scatter_block(in.data, out.data, static_cast<int>(out.count), type(in.type), op, comm_.get()));
    } else {
      for (int root = 0; root < size(); ++root) {
        std::byte* to = bytes(out.data);
        in_pieces(bytes(in.data) + static_cast<std::size_t>(root) * out.bytes(), out.count, in.type,
                  [&](void* data, int count) {
                    check(MPI_Reduce(data, to, count, type(in.type), op, root, comm_.get()));
                    to += static_cast<std::size_t>(count) * size_of(in.type);
                  });
      }
    }
    if (reduction == Reduction::average) divide(out.type, out.data, out.count, size());
  }

  void do_all_gather(const ConstBlock& in, const Block& out) override {
    std::byte* own_part = bytes(out.data) + static_cast<std::size_t>(rank()) * in.bytes();
    const bool in_place = in.data == own_part;
    if (fits(out.count)) {
      const int count = static_cast<int>(in.count);
      check(MPI_Allgather(in_place ? MPI_IN_PLACE : in.data, count, type(in.type), out.data, count, type(in.type),
                          comm_.get()));
      return;
    }
    if (!in_place) std::copy_n(bytes(in.data), in.bytes(), own_part);
    for (int root = 0; root < size(); ++root)
      do_broadcast({bytes(out.data) + static_cast<std::size_t>(root) * in.bytes(), in.count, in.type}, root);
  }

  void do_barrier() override { check(MPI_Barrier(comm_.get())); }

  std::size_t largest_count_;
  MpiComm comm_;
  MpiTypes types_;
};

}  // namespace

std::unique_ptr<Communicator> make_mpi(World& world, std::size_t largest_count) {
  return std::make_unique<MpiCommunicator>(world, largest_count);
}

}  // namespace multinode
