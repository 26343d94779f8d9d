// SPDX-License-Identifier: Apache-2.0
#include <multinode/communicator/mpi_types.hpp>

namespace multinode {

namespace {

// MPI: inout = in (op) inout, where `in` comes from the lower ranks.
template <DataType type, Reduction reduction>
void reduce(void* in, void* inout, int* count, MPI_Datatype*) {
  combine(type, reduction, inout, in, inout, static_cast<std::size_t>(*count));
}

}  // namespace

MpiTypes::MpiTypes() {
  check(MPI_Type_contiguous(2, MPI_BYTE, &two_bytes_));
  check(MPI_Type_commit(&two_bytes_));
  types_ = {MPI_FLOAT,   MPI_DOUBLE,  two_bytes_,   two_bytes_,  MPI_INT8_T,  // in the order of DataType
            MPI_UINT8_T, MPI_INT32_T, MPI_UINT32_T, MPI_INT64_T, MPI_UINT64_T};
  operations_.fill({MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_SUM});
  using enum Reduction;
  add_operations<DataType::float16, sum, product, min, max, average>();
  add_operations<DataType::bfloat16, sum, product, min, max, average>();
#ifdef MPICH_VERSION
  // MPICH 4.0 compares unsigned bytes as signed ones (max(100, 200) is 100), and its ranks reduce in different orders,
  // so that their zeros had different signs.
  add_operations<DataType::uint8, min, max>();
  add_operations<DataType::float32, min, max>();
  add_operations<DataType::float64, min, max>();
#endif
}

template <DataType type, Reduction... reductions>
void MpiTypes::add_operations() {
  Operations& operations = operations_[static_cast<std::size_t>(type)];
  for (const auto& [reduction, function] : {std::pair(reductions, &reduce<type, reductions>)...}) {
    check(MPI_Op_create(function, 1, &own_.emplace_back(MPI_OP_NULL)));
    operations[static_cast<std::size_t>(reduction)] = own_.back();
  }
}

MpiTypes::~MpiTypes() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  for (MPI_Op& operation : own_) MPI_Op_free(&operation);
  MPI_Type_free(&two_bytes_);
}

}  // namespace multinode
