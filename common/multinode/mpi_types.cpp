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
  add_short_float<DataType::float16>();
  add_short_float<DataType::bfloat16>();
}

template <DataType type>
void MpiTypes::add_short_float() {
  types_[static_cast<std::size_t>(type)] = two_bytes_;
  Operations& its = operations_[static_cast<std::size_t>(type)];
  constexpr std::array functions = {&reduce<type, Reduction::sum>, &reduce<type, Reduction::product>,
                                    &reduce<type, Reduction::min>, &reduce<type, Reduction::max>,
                                    &reduce<type, Reduction::average>};
  for (std::size_t i = 0; i < its.size(); ++i) check(MPI_Op_create(functions[i], 1, &its[i]));
}

MpiTypes::~MpiTypes() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  for (const DataType type : {DataType::float16, DataType::bfloat16})
    for (MPI_Op& operation : operations_[static_cast<std::size_t>(type)]) MPI_Op_free(&operation);
  MPI_Type_free(&two_bytes_);
}

}  // namespace multinode
