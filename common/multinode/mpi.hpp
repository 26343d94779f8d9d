// mpi.hpp: check() for MPI's return codes. For programs that link MPI.
#pragma once

#include <multinode/check.hpp>

#include <mpi.h>

namespace multinode {

namespace detail {
[[noreturn, gnu::noinline, gnu::cold]] inline void throw_mpi(int code, const source_location& at) {
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw std::runtime_error(place(at) + std::string(text, static_cast<std::size_t>(length)));
}
}  // namespace detail

// Throws std::runtime_error with MPI's own text and the caller's place unless `code` is MPI_SUCCESS. The communicator
// needs MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN): otherwise MPI ends the program and never returns a code.
inline void check(int code, source_location at = source_location::current()) {
  if (code != MPI_SUCCESS) [[unlikely]]
    detail::throw_mpi(code, at);
}

}  // namespace multinode
