#include "record.hpp"

#include <string_view>

namespace who_waits {

const char* name_of(Kind kind) {
  static constexpr const char* names[] = {
      "nothing",
#define X(name) #name,
#define Y(name) #name,
#include "calls.inc"
#undef X
#undef Y
  };
  return kind < Kind::count ? names[static_cast<std::size_t>(kind)] : "an unknown call";
}

Role role_of(Kind kind) {
  switch (kind) {
    case Kind::MPI_Send:
    case Kind::MPI_Ssend:
    case Kind::MPI_Bsend:
    case Kind::MPI_Rsend:
    case Kind::MPI_Isend:
    case Kind::MPI_Issend:
    case Kind::MPI_Ibsend:
    case Kind::MPI_Irsend:
    case Kind::MPI_Send_init:
    case Kind::MPI_Ssend_init:
    case Kind::MPI_Bsend_init:
    case Kind::MPI_Rsend_init:
    case Kind::ncclSend:
      return Role::send;
    case Kind::MPI_Recv:
    case Kind::MPI_Irecv:
    case Kind::MPI_Recv_init:
    case Kind::MPI_Probe:
    case Kind::MPI_Mprobe:
    case Kind::MPI_Iprobe:
    case Kind::MPI_Improbe:
    case Kind::ncclRecv:
      return Role::receive;
    case Kind::MPI_Sendrecv:
    case Kind::MPI_Sendrecv_replace:
      return Role::both;
    case Kind::MPI_Wait:
    case Kind::MPI_Waitall:
    case Kind::MPI_Test:
    case Kind::MPI_Testall:
      return Role::wait_all;
    case Kind::MPI_Waitany:
    case Kind::MPI_Waitsome:
    case Kind::MPI_Testany:
    case Kind::MPI_Testsome:
      return Role::wait_any;
    case Kind::cudaStreamSynchronize:
    case Kind::cudaDeviceSynchronize:
    case Kind::cudaEventSynchronize:
    case Kind::cudaMemcpy:
    case Kind::ncclGroupEnd:
    case Kind::ncclCommDestroy:
      return Role::device;
    case Kind::none:
    case Kind::count:
      return Role::other;
    default:
      return Role::collective;
  }
}

}  // namespace who_waits
