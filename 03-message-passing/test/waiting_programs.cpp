// Programs that hang, each by one mistake, and 40 that are right but slow, for the tests of who_waits. With 4 ranks.
// `slow_seconds` is longer than the test's --after.
#include <mpi.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
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

void wrong_tag() {
  if (rank == 1) send(0, 8);
  if (rank == 0) receive(1, 7);
}

const std::map<std::string, std::function<void()>> programs = {
    // Mistakes.
    {"receive_first", [] { receive(right(), 7), send(left(), 7); }},
    {"big_sends_first", [] { send(right(), 7, big), receive(left(), 7, big); }},
    {"synchronous_sends", [] { MPI_Ssend(out.data(), 1, MPI_INT, right(), 7, world()), receive(left(), 7); }},
    {"wrong_tag", wrong_tag},
    {"late_then_wrong_tag",
     [] {
       if (rank == 1) sleep(slow_seconds);
       wrong_tag();
     }},
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
};

// Right programs, in which a rank is late: what it does, and how the others wait for it.
void read_pipe() {
  std::FILE* pipe = popen(("sleep " + std::to_string(slow_seconds)).c_str(), "r");
  std::fgetc(pipe), pclose(pipe);
}
void be_stopped() {
  if (fork() == 0) sleep(slow_seconds), kill(getppid(), SIGCONT), _exit(0);
  raise(SIGSTOP), wait(nullptr);
}
const std::vector<std::function<void()>> late_work = {
    [] { compute(slow_seconds); },
    [] { sleep(slow_seconds); },
    read_pipe,
    [] { std::thread(compute, slow_seconds).join(); },
    be_stopped,
    [] {
      for (int i = 0; i < 100 * slow_seconds; ++i) usleep(10'000);
    },
    [] {
      if (std::system(("sleep " + std::to_string(slow_seconds)).c_str())) std::abort();
    },
};

void of_late(int late, const std::function<void()>& receives) {  // one message from the late rank to each other
  for (int to = 0; rank == late && to < size; ++to)
    if (to != late) send(to, 1);
  if (rank != late) receives();
}
const std::vector<std::function<void(int late)>> meetings = {
    [](int) { barrier(); },
    [](int) { all_reduce(); },
    [](int late) { MPI_Bcast(out.data(), big, MPI_INT, late, world()); },
    [](int late) { MPI_Gather(out.data(), 9, MPI_INT, in.data(), 9, MPI_INT, late, world()), barrier(); },
    [](int late) { of_late(late, [&] { receive(late, 1); }); },
    [](int late) { of_late(late, [] { receive(MPI_ANY_SOURCE, MPI_ANY_TAG); }); },
    [](int late) {  // big messages to the late rank
      if (rank != late) send(late, 1, big);
      for (int i = 1; rank == late && i < size; ++i) receive(MPI_ANY_SOURCE, 1, big);
    },
    [](int late) {  // synchronous ones
      if (rank != late) MPI_Ssend(out.data(), 1, MPI_INT, late, 1, world());
      for (int i = 1; rank == late && i < size; ++i) receive(MPI_ANY_SOURCE, 1);
    },
    [](int late) {
      of_late(late, [&] {
        MPI_Status status;
        MPI_Probe(late, 1, world(), &status), receive(late, 1);
      });
    },
    [](int late) {
      of_late(late, [&] {
        int flag = 0;
        while (!flag) MPI_Iprobe(MPI_ANY_SOURCE, 1, world(), &flag, MPI_STATUS_IGNORE);
        receive(late, 1);
      });
    },
    [](int late) {  // a receive that never gets its message is beside the one that does
      of_late(late, [&] {
        MPI_Request two[2];
        int which;
        MPI_Irecv(in.data(), 1, MPI_INT, late, 2, world(), &two[0]);
        MPI_Irecv(in.data() + 1, 1, MPI_INT, late, 1, world(), &two[1]);
        MPI_Waitany(2, two, &which, MPI_STATUS_IGNORE), MPI_Cancel(&two[0]), MPI_Request_free(&two[0]);
      });
    },
    [](int) {
      MPI_Request r;
      MPI_Ibarrier(world(), &r), MPI_Wait(&r, MPI_STATUS_IGNORE);
    },
    [](int) {
      MPI_Request r;
      MPI_Iallreduce(out.data(), in.data(), 1, MPI_INT, MPI_SUM, world(), &r);
      for (int done = 0; !done;) MPI_Test(&r, &done, MPI_STATUS_IGNORE);
    },
    [](int) {
      MPI_Comm half = halves();
      barrier(half), MPI_Comm_free(&half);
    },
    [](int) {
      MPI_Sendrecv(out.data(), big, MPI_INT, right(), 1, in.data(), big, MPI_INT, left(), 1, world(),
                   MPI_STATUS_IGNORE);
    },
    [](int) { persistent_ring(10, -1); },
    [](int) {  // a chain
      if (rank > 0) receive(rank - 1, 1);
      if (rank + 1 < size) send(rank + 1, 1);
    },
    [](int) {},  // they are in MPI_Finalize
    [](int) {    // calls that are not recorded
      MPI_Win window;
      MPI_Win_create(in.data(), 4, 4, MPI_INFO_NULL, world(), &window);
      MPI_Win_fence(0, window), MPI_Win_free(&window);
    },
};

void right_program(int number) {                             // of 40: each is another pair
  const int late = number % 10 == 9 ? rank : number % size;  // every tenth: all ranks are late
  for (int i = 0; i < 20; ++i) {
    MPI_Comm half = halves();
    barrier(half), MPI_Comm_free(&half);
  }
  if (rank == late) late_work[static_cast<std::size_t>(number) % late_work.size()]();
  meetings[static_cast<std::size_t>(number) % meetings.size()](number % size);
}

}  // namespace

int main(int argc, char** argv) {
  const auto program = programs.find(argc == 2 ? argv[1] : "");
  const bool sums = argc == 5 && argv[1] == std::string("sums"), right = argc == 3 && argv[1] == std::string("right");
  const bool calls = argc == 2 && argv[1] == std::string("calls");
  if (program == programs.end() && !sums && !right && !calls)
    return std::fputs("usage: waiting_programs NAME|right NUMBER|calls\n", stderr), 2;
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
  if (calls) {  // what calls cost that need no other rank, in ns
    const auto each = [](int times, const auto& call) {
      const double start = MPI_Wtime();
      for (int i = 0; i < times; ++i) call();
      return 1e9 * (MPI_Wtime() - start) / times;
    };
    const auto sum = [] { MPI_Allreduce(out.data(), in.data(), 2, MPI_INT, MPI_SUM, MPI_COMM_SELF); };
    const auto messages = [] {
      MPI_Request r;
      MPI_Irecv(in.data(), 2, MPI_INT, 0, 1, MPI_COMM_SELF, &r);
      send(0, 1, 2, MPI_COMM_SELF), MPI_Wait(&r, MPI_STATUS_IGNORE);
    };
    each(100'000, sum), each(100'000, messages);
    std::printf("%.1f %.1f\n", each(3'000'000, sum), each(1'000'000, messages) / 3);
    return MPI_Finalize();
  }
  for (int i = 0; i < 3; ++i) all_reduce();
  if (rank == 0) std::puts("3 sums are right"), std::fflush(stdout);
  right ? right_program(std::atoi(argv[2])) : program->second();
  MPI_Finalize();
  if (rank == 0) std::puts("done");
}
