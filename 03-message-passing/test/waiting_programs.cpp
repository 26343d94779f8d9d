// waiting_programs NAME: programs that hang, each by one mistake, and programs that are right but slow, for the tests
// of who_waits. With 4 ranks. `slow_seconds` is longer than the test's --after.
#include <mpi.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <vector>

namespace {

constexpr int slow_seconds = 4;
const int big = 1 << 20;
int rank, size;
std::vector<int> out(big), in(big);
MPI_Comm world() { return MPI_COMM_WORLD; }
int right() { return (rank + 1) % size; }
int left() { return (rank + size - 1) % size; }

void send(int to, int tag, int count = 1, MPI_Comm comm = world()) {
  MPI_Send(out.data(), count, MPI_INT, to, tag, comm);
}
void receive(int from, int tag, int count = 1, MPI_Comm comm = world()) {
  MPI_Recv(in.data(), count, MPI_INT, from, tag, comm, MPI_STATUS_IGNORE);
}
void all_reduce(int count = 1) { MPI_Allreduce(out.data(), in.data(), count, MPI_INT, MPI_SUM, world()); }
void barrier(MPI_Comm comm = world()) { MPI_Barrier(comm); }
void compute(int seconds) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  for (volatile double x = 0; std::chrono::steady_clock::now() < end;) x = x + 1;
}
MPI_Comm halves() {
  MPI_Comm half;
  MPI_Comm_split(world(), rank % 2, rank, &half);
  return half;
}

// Rounds of messages to the right; rank 2 leaves out its message number `without`.
void persistent_ring(int rounds, int without) {
  MPI_Request both[2];
  MPI_Recv_init(in.data(), 1, MPI_INT, left(), 5, world(), &both[0]);
  MPI_Send_init(out.data(), 1, MPI_INT, right(), 5, world(), &both[1]);
  for (int i = 0; i < rounds; ++i)
    if (rank == 2 && i == without)
      MPI_Start(both), MPI_Wait(both, MPI_STATUS_IGNORE);
    else
      MPI_Startall(2, both), MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
  MPI_Request_free(&both[0]), MPI_Request_free(&both[1]);
}

const std::map<std::string, std::function<void()>> programs = {
    // Mistakes.
    {"receive_first", [] { receive(right(), 7), send(left(), 7); }},
    {"big_sends_first", [] { send(right(), 7, big), receive(left(), 7, big); }},
    {"synchronous_sends", [] { MPI_Ssend(out.data(), 1, MPI_INT, right(), 7, world()), receive(left(), 7); }},
    {"wrong_tag", [] { rank == 1   ? send(0, 8)
                       : rank == 0 ? receive(1, 7)
                                   : void(); }},
    {"wrong_peer", [] { rank == 1   ? send(2, 7)
                        : rank == 0 ? receive(1, 7)
                                    : void(); }},
    {"wrong_communicator",
     [] {
       MPI_Comm twin;
       MPI_Comm_dup(world(), &twin);
       if (rank == 1) send(0, 7, 1, twin);
       if (rank == 0) receive(1, 7);
       barrier();
     }},
    {"one_message_too_few",
     [] {
       for (int i = 0; i < 10 && rank == 1; ++i)
         if (i != 6) send(0, 7);
       for (int i = 0; i < 10 && rank == 0; ++i) receive(1, 7);
       barrier();
     }},
    {"send_without_receive", [] { rank == 2 ? send(3, 7, big) : barrier(); }},
    {"other_collective",
     [] {
       rank == 2 ? void(MPI_Reduce(out.data(), in.data(), 1, MPI_INT, MPI_SUM, 0, world()))
                 : void(MPI_Bcast(out.data(), big, MPI_INT, 0, world())),
           barrier();
     }},
    {"other_root", [] { MPI_Bcast(out.data(), big, MPI_INT, rank == 3 ? 1 : 0, world()), barrier(); }},
    {"other_count", [] { all_reduce(rank == 1 ? big : 16), barrier(); }},
    {"one_all_reduce_less",
     [] {
       for (int i = 0; i < 57; ++i)
         if (rank != 2 || i != 30) all_reduce();
     }},
    {"receive_beside_collective", [] { rank == 1 ? receive(3, 7) : all_reduce(big); }},
    {"early_return",
     [] {
       if (rank != 1) barrier();
     }},
    {"exits", [] { rank == 2 ? _exit(0) : barrier(); }},
    {"crashes", [] { rank == 2 ? std::abort() : barrier(); }},
    {"other_order_of_communicators",
     [] {
       MPI_Comm a, b;
       MPI_Comm_dup(world(), &a), MPI_Comm_dup(world(), &b);
       barrier(rank == 0 ? b : a), barrier(rank == 0 ? a : b);
     }},
    {"half_waits",
     [] {
       const MPI_Comm half = halves();
       if (rank != 2)
         barrier(half);
       else
         barrier();
     }},
    {"any_source", [] { rank == 0 ? receive(MPI_ANY_SOURCE, MPI_ANY_TAG) : barrier(); }},
    {"wait_for_receive",
     [] {
       MPI_Request request;
       MPI_Irecv(in.data(), 1, MPI_INT, right(), 5, world(), &request);
       MPI_Wait(&request, MPI_STATUS_IGNORE);
     }},
    {"waitall_with_one_missing",
     [] {
       MPI_Request requests[2];
       MPI_Irecv(in.data(), 1, MPI_INT, left(), 5, world(), &requests[0]);
       MPI_Isend(out.data(), 1, MPI_INT, right(), rank == 1 ? 6 : 5, world(), &requests[1]);
       MPI_Waitall(2, requests, MPI_STATUSES_IGNORE);
       barrier();
     }},
    {"ibarrier_of_three",
     [] {
       if (rank == 3) return receive(0, 1);
       MPI_Request r;
       MPI_Ibarrier(world(), &r), MPI_Wait(&r, MPI_STATUS_IGNORE);
     }},
    {"probe_of_nothing",
     [] {
       if (rank == 0) {
         MPI_Status s;
         MPI_Probe(3, 9, world(), &s);
       }
       barrier();
     }},
    {"sendrecv_ring_with_a_gap",
     [] {
       if (rank != 2)
         MPI_Sendrecv(out.data(), big, MPI_INT, right(), 1, in.data(), big, MPI_INT, left(), 1, world(),
                      MPI_STATUS_IGNORE);
       barrier();
     }},
    {"wrong_tag_from_fortran",  // Open MPI's Fortran calls these names
     [] {
       if (rank == 1) PMPI_Send(out.data(), 1, MPI_INT, 0, 8, world());
       if (rank == 0) PMPI_Recv(in.data(), 1, MPI_INT, 1, 7, world(), MPI_STATUS_IGNORE);
     }},
    {"persistent_send_left_out", [] { persistent_ring(10, 6); }},
    // Right programs, whose ranks are quiet for long.
    {"right_computes",
     [] {
       if (rank == 2) compute(slow_seconds);
       barrier();
     }},
    {"right_all_compute", [] { compute(slow_seconds), barrier(); }},
    {"right_sleeps",
     [] {
       if (rank == 1) sleep(slow_seconds);
       all_reduce();
     }},
    {"right_chain",
     [] {
       if (rank == 0) compute(slow_seconds);
       if (rank > 0) receive(rank - 1, 1);
       if (rank + 1 < size) send(rank + 1, 1);
     }},
    {"right_server",
     [] {
       if (rank) {
         if (rank == 1) compute(slow_seconds);
         send(0, rank);
       } else
         for (int i = 1; i < size; ++i) receive(MPI_ANY_SOURCE, MPI_ANY_TAG);
     }},
    {"right_probes",
     [] {
       if (rank) {
         sleep(slow_seconds), send(0, 1);
       }
       for (int got = 0; rank == 0 && got + 1 < size;) {
         int flag = 0;
         MPI_Iprobe(MPI_ANY_SOURCE, 1, world(), &flag, MPI_STATUS_IGNORE);
         if (flag) receive(MPI_ANY_SOURCE, 1), ++got;
       }
     }},
    {"right_tests",
     [] {
       MPI_Request r;
       MPI_Ibarrier(world(), &r);
       if (rank == 3) compute(slow_seconds);
       for (int done = 0; !done;) MPI_Test(&r, &done, MPI_STATUS_IGNORE);
     }},
    {"right_late_finalize",
     [] {
       if (rank == 0) sleep(slow_seconds);
     }},
    {"right_long_send",
     [] {
       if (rank == 0) send(1, 1, big);
       if (rank == 1) compute(slow_seconds), receive(0, 1, big);
       barrier();
     }},
    {"right_splits",
     [] {
       for (int i = 0; i < 100; ++i) {
         MPI_Comm half = halves();
         barrier(half), MPI_Comm_free(&half);
       }
       if (rank == 0) compute(slow_seconds);
       barrier();
     }},
    {"right_file",
     [] {
       if (rank == 0) {
         std::FILE* pipe = popen("sleep 4", "r");
         pclose(pipe);
       }
       barrier();
     }},
};

}  // namespace

int main(int argc, char** argv) {
  const auto program = programs.find(argc == 2 ? argv[1] : "");
  const bool sums = argc == 5 && argv[1] == std::string("sums");
  if (program == programs.end() && !sums) return std::fputs("usage: waiting_programs NAME\n", stderr), 2;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(world(), &rank);
  MPI_Comm_size(world(), &size);
  if (sums) {  // sums RANK MS COUNT: 20 sums of COUNT numbers, for which RANK is late
    for (int i = 0; i < 20; ++i) {
      usleep(rank == std::atoi(argv[2]) ? 1000 * std::atoi(argv[3]) : 1000);
      all_reduce(std::atoi(argv[4]));
    }
    return MPI_Finalize();
  }
  for (int i = 0; i < 3; ++i) all_reduce();
  if (rank == 0) std::puts("3 sums are right"), std::fflush(stdout);
  program->second();
  MPI_Finalize();
  if (rank == 0) std::puts("done");
}
