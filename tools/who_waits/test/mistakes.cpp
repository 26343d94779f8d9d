// A library to load into any program of MPI or NCCL: it puts one mistake into one call of one rank, for the tests of
// who_waits. MISTAKE="RANK CALL NUMBER KIND": skip (the call is left out), tag, root and count (another one), barrier
// (MPI_Barrier instead), sleep and compute (8 s before it), stop (for ever before it), exit, abort.
#include <mpi.h>
#ifdef WITH_NCCL
#include <cuda_runtime_api.h>
#include <nccl.h>
#endif
#include "recorder.hpp"

#include <unistd.h>

#include <cstdlib>
#include <ctime>
#include <sstream>

using namespace who_waits;

namespace {

std::string planted(const std::string& call, int number) {
  std::istringstream text(std::getenv("MISTAKE") ? std::getenv("MISTAKE") : "");
  std::string wanted_rank, wanted_call, kind;
  int wanted_number = 0;
  text >> wanted_rank >> wanted_call >> wanted_number >> kind;
  if (call != wanted_call || number != wanted_number) return "";
  for (const char* variable : {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "RANK", "SLURM_PROCID"})
    if (const char* const rank = std::getenv(variable)) {
      if (rank != wanted_rank) return "";
      break;
    }
  if (kind == "sleep") ::sleep(8);
  if (kind == "stop") ::pause();
  if (kind == "exit") ::_exit(0);
  if (kind == "abort") std::abort();
  if (kind == "compute")
    for (const std::time_t end = std::time(nullptr) + 8; std::time(nullptr) < end;) continue;
  return kind;
}

// NCCL's calls have the root as their only int, the count as their size_t.
template <Kind kind, class... A>
auto wrapped(A... a) {
#ifdef WITH_NCCL
  using Result = std::conditional_t<name_of(kind)[0] == 'n', ncclResult_t,
                                    std::conditional_t<name_of(kind)[0] == 'c', cudaError_t, int>>;
#else
  using Result = int;
#endif
  static int number = 0;
  static auto* const next = reinterpret_cast<Result (*)(A...)>(::dlsym(RTLD_NEXT, name_of(kind)));
  const std::string what = planted(name_of(kind), ++number);
  if (what == "skip") return Result{};
  if (what == "barrier") return static_cast<Result>(MPI_Barrier(MPI_COMM_WORLD));
  std::tuple<A...> all(a...);
  constexpr CallFields fields = fields_of(kind);
  if constexpr (name_of(kind)[0] == 'n') {
    const auto change = [&](auto& argument) {
      if constexpr (std::is_same_v<decltype(argument), int&>) argument += what == "root";
      if constexpr (std::is_same_v<decltype(argument), std::size_t&>) argument /= what == "count" ? 2 : 1;
    };
    std::apply([&](auto&... one) { (change(one), ...); }, all);
  } else if constexpr (role_of(kind) == Role::collective) {
    if constexpr (fields.count >= 0 && fields.root >= 0) std::get<fields.root>(all) += what == "root";
    if constexpr (fields.count >= 0) std::get<fields.count>(all) /= what == "count" ? 2 : 1;
  } else if constexpr (role_of(kind) == Role::send || role_of(kind) == Role::receive || role_of(kind) == Role::both) {
    std::get<fields.communicator - 1>(all) += what == "tag";
  }
  return std::apply(next, all);
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {
#define CALL WRAP
#ifdef WITH_NCCL
#define GPU_CALL WRAP
#endif
#define ONLY_OF_THIS_MPI
#include "calls.inc"
}
