#include <multinode/mpi_types.hpp>

namespace multinode {

namespace {

// MPI: inout = in (op) inout; `in` is the part of the lower ranks.
template <DataType type, Reduction reduction>
void reduce(void* in, void* inout, int* count, MPI_Datatype*) {
  combine(type, reduction, inout, in, inout, static_cast<std::size_t>(*count));
}

MPI_Datatype built_in(DataType type) {
  switch (type) {
    case DataType::float32:
      return MPI_FLOAT;
    case DataType::float64:
      return MPI_DOUBLE;
    case DataType::int8:
      return MPI_INT8_T;
    case DataType::uint8:
      return MPI_UINT8_T;
    case DataType::int32:
      return MPI_INT32_T;
    case DataType::uint32:
      return MPI_UINT32_T;
    case DataType::int64:
      return MPI_INT64_T;
    case DataType::uint64:
      return MPI_UINT64_T;
    case DataType::float16:
    case DataType::bfloat16:
      break;
  }
  return MPI_DATATYPE_NULL;
}

}  // namespace

MpiTypes::MpiTypes() {
  for (const DataType type : data_types) {
    types_[static_cast<std::size_t>(type)] = built_in(type);
    operations_[static_cast<std::size_t>(type)] = {MPI_SUM, MPI_PROD, MPI_MIN, MPI_MAX, MPI_SUM};
  }
  check(MPI_Type_contiguous(2, MPI_BYTE, &two_bytes_));
  check(MPI_Type_commit(&two_bytes_));
  for (const DataType type : {DataType::float16, DataType::bfloat16})
    types_[static_cast<std::size_t>(type)] = two_bytes_;
  using enum Reduction;
  add_operations<DataType::float16, sum, product, min, max, average>();
  add_operations<DataType::bfloat16, sum, product, min, max, average>();
#ifdef MPICH_VERSION
  // MPICH 4.0 compares unsigned bytes as if they had a sign (max(100, 200) is 100), and its ranks reduce in different
  // orders: their zeros had different signs.
  add_operations<DataType::uint8, min, max>();
  add_operations<DataType::float32, min, max>();
  add_operations<DataType::float64, min, max>();
#endif
}

template <DataType type, Reduction... its_reductions>
void MpiTypes::add_operations() {
  Operations& its = operations_[static_cast<std::size_t>(type)];
  for (const auto& [reduction, function] : {std::pair(its_reductions, &reduce<type, its_reductions>)...}) {
    check(MPI_Op_create(function, 1, &own_.emplace_back(MPI_OP_NULL)));
    its[static_cast<std::size_t>(reduction)] = own_.back();
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
