// mpi.hpp: check() for MPI's return codes, and an MPI communicator of a World's ranks. For programs that link MPI.
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

class World;

// A communicator of all of a World's ranks, with the same numbers, that returns its errors. Starts MPI unless that was
// done, and then ends it when the process ends: it cannot be started twice. Collective. Throws UsageError where MPI
// does not serve the World's launcher.
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
