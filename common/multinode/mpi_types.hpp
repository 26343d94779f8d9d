// mpi_types.hpp: MPI's handles for DataType and Reduction. For programs that link MPI.
#pragma once

#include <multinode/data_type.hpp>
#include <multinode/mpi.hpp>

#include <vector>

namespace multinode {

// MPI's own types and operations, and some for half and bfloat16, which MPI lacks, and for what MPICH has wrong. From
// after MPI_Init to before MPI_Finalize; throws std::runtime_error where MPI refuses.
class MpiTypes {
 public:
  MpiTypes();
  ~MpiTypes();
  MpiTypes(const MpiTypes&) = delete;
  MpiTypes& operator=(const MpiTypes&) = delete;

  MPI_Datatype type(DataType type) const { return types_[static_cast<std::size_t>(type)]; }
  // Reduction::average: the sum, which the caller divides.
  MPI_Op operation(DataType type, Reduction reduction) const {
    return operations_[static_cast<std::size_t>(type)][static_cast<std::size_t>(reduction)];
  }

 private:
  using Operations = std::array<MPI_Op, reductions.size()>;  // by Reduction

  template <DataType type, Reduction... its_reductions>
  void add_operations();

  MPI_Datatype two_bytes_ = MPI_DATATYPE_NULL;
  std::array<MPI_Datatype, data_types.size()> types_{};     // by DataType
  std::array<Operations, data_types.size()> operations_{};  // by DataType
  std::vector<MPI_Op> own_;
};

}  // namespace multinode
