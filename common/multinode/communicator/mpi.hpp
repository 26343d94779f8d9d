// mpi.hpp: check() for MPI's return codes, and an MPI communicator of a World's ranks. For programs that link MPI.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/check.hpp>
#include <multinode/communicator/libraries.hpp>

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

// Throws std::runtime_error with MPI's error text and the caller's source location unless `code` is MPI_SUCCESS. The
// communicator needs MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN): by default MPI ends the program instead of
// returning an error code.
inline void check(int code, source_location at = source_location::current()) {
  if (code != MPI_SUCCESS) [[unlikely]]
    detail::throw_mpi(code, at);
}

class World;

// A duplicate of MPI_COMM_WORLD with MPI_ERRORS_RETURN. Constructor and destructor are collective. The constructor
// initializes MPI if necessary; MPI is then finalized when the process exits, because it cannot be initialized twice.
// It throws UsageError if the launcher is not an MPI launcher or MPI has other ranks than the World.
class MpiComm {
 public:
  explicit MpiComm(const World& world);
  ~MpiComm();
  MpiComm(const MpiComm&) = delete;
  MpiComm& operator=(const MpiComm&) = delete;
  MPI_Comm get() const { return comm_; }

 private:
  MPI_Comm comm_ = MPI_COMM_NULL;
};

}  // namespace multinode
