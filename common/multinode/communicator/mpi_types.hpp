// mpi_types.hpp: MPI's handles for DataType and Reduction. For programs that link MPI.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator/data_type.hpp>
#include <multinode/communicator/mpi.hpp>

#include <vector>

namespace multinode {

// MPI's own types and operations, and our own for half and bfloat16, which MPI lacks, and where MPICH has bugs. Use it
// between MPI_Init and MPI_Finalize. Throws std::runtime_error for an MPI error.
class MpiTypes {
 public:
  MpiTypes();
  ~MpiTypes();
  MpiTypes(const MpiTypes&) = delete;
  MpiTypes& operator=(const MpiTypes&) = delete;

  MPI_Datatype type(DataType type) const { return types_[static_cast<std::size_t>(type)]; }
  // For Reduction::average it is the sum, and the caller divides.
  MPI_Op operation(DataType type, Reduction reduction) const {
    return operations_[static_cast<std::size_t>(type)][static_cast<std::size_t>(reduction)];
  }

 private:
  using Operations = std::array<MPI_Op, reductions.size()>;  // by Reduction

  template <DataType type, Reduction... reductions>
  void add_operations();

  MPI_Datatype two_bytes_ = MPI_DATATYPE_NULL;
  std::array<MPI_Datatype, data_types.size()> types_{};     // by DataType
  std::array<Operations, data_types.size()> operations_{};  // by DataType
  std::vector<MPI_Op> own_;
};

}  // namespace multinode
