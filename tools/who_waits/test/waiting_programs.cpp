// Programs for the tests of who_waits, most of which hang or are slow, from the command line:
//   waiting_programs "1 send 0 8; 0 receive 1 7; * 3*barrier"
// Each statement names its ranks (* all, ! all but this one), how often, an operation, and its arguments: numbers, or
// left, right, any, big. The last argument of messages and collectives is the number of the communicator; 0 is the
// world.
#include <mpi.h>
#ifdef WITH_NVTX
#include <nvtx3/nvToolsExt.h>
#endif
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace {

int rank, size;
std::vector<int> out(1 << 20), in(out.size());
std::vector<MPI_Comm> communicators;
std::vector<MPI_Request> requests;
std::vector<int> arguments;

// The operations of statements: OPERATION(barrier) { ... }.
std::map<std::string, void (*)()> operations;
struct Operation {
  Operation(const char* name, void (*function)()) { operations[name] = function; }
};
#define OPERATION(name)                      \
  void name();                               \
  const Operation name##_known(#name, name); \
  void name()

int argument(std::size_t i, int otherwise = 0) { return i < arguments.size() ? arguments[i] : otherwise; }
MPI_Comm comm(std::size_t i) { return communicators.at(static_cast<std::size_t>(argument(i))); }
int peer() { return argument(0); }
int tag() { return argument(1) == MPI_ANY_SOURCE ? MPI_ANY_TAG : argument(1); }
int count() { return argument(2, 1); }
MPI_Request* new_request() { return &requests.emplace_back(MPI_REQUEST_NULL); }
int number_of_requests() { return static_cast<int>(requests.size()); }
MPI_Status* none() { return MPI_STATUS_IGNORE; }

OPERATION(compute) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(argument(0));
  for (volatile double x = 0; std::chrono::steady_clock::now() < end;) x = x + 1;
}
void all_reduce(int numbers) { MPI_Allreduce(out.data(), in.data(), numbers, MPI_INT, MPI_SUM, MPI_COMM_WORLD); }
void send_to(int to, int numbers, MPI_Comm where) { MPI_Send(out.data(), numbers, MPI_INT, to, tag(), where); }
void deeper(int seconds) {  // in another function call each second
  if (sleep(1), seconds > 1) deeper(seconds - 1);
  std::fflush(stdout);
}
OPERATION(read_pipe) {
  std::FILE* pipe = popen(("sleep " + std::to_string(argument(0))).c_str(), "r");
  std::fgetc(pipe), pclose(pipe);
}
OPERATION(be_stopped) {
  const auto seconds = static_cast<unsigned>(argument(0));
  if (fork() == 0) sleep(seconds), kill(getppid(), SIGCONT), _exit(0);
  raise(SIGSTOP), wait(nullptr);
}
OPERATION(split) { MPI_Comm_split(MPI_COMM_WORLD, rank % 2, rank, &communicators.emplace_back()); }
OPERATION(halves) {
  split(), MPI_Barrier(communicators.back()), MPI_Comm_free(&communicators.back());
  communicators.pop_back();
}
OPERATION(send_to_all) {
  for (int to = 0; to < size; ++to)
    if (to != rank) send_to(to, 1, MPI_COMM_WORLD);
}
OPERATION(iprobe) {
  for (int flag = 0; !flag;) MPI_Iprobe(peer(), tag(), comm(3), &flag, none());
}
OPERATION(test) {
  for (int done = 0; !done; usleep(1000 * static_cast<unsigned>(argument(0))))
    MPI_Test(&requests.back(), &done, none());
}
// Rounds of messages to the right by persistent requests. Rank 2 leaves out its message in one of them.
OPERATION(persistent_ring) {
  MPI_Request both[2];
  MPI_Recv_init(in.data(), 1, MPI_INT, (rank + size - 1) % size, 5, MPI_COMM_WORLD, &both[0]);
  MPI_Send_init(out.data(), 1, MPI_INT, (rank + 1) % size, 5, MPI_COMM_WORLD, &both[1]);
  for (int i = 0; i < argument(0); ++i)
    if (rank == 2 && i == argument(1, -1))
      MPI_Start(both), MPI_Wait(both, none());
    else
      MPI_Startall(2, both), MPI_Waitall(2, both, MPI_STATUSES_IGNORE);
  MPI_Request_free(&both[0]), MPI_Request_free(&both[1]);
}

OPERATION(group) {
  MPI_Group all;
  MPI_Comm_group(MPI_COMM_WORLD, &all);
  MPI_Comm_create_group(MPI_COMM_WORLD, all, argument(0, 1), &communicators.emplace_back()), MPI_Group_free(&all);
}
// An intercommunicator of two halves: leader of the lower half, as the upper one names it; its tag, and the upper
// one's.
OPERATION(join_halves) {
  const bool upper = rank >= size / 2;
  MPI_Comm half;
  MPI_Comm_split(MPI_COMM_WORLD, upper, rank, &half);
  MPI_Intercomm_create(half, 0, MPI_COMM_WORLD, upper ? argument(0) : size / 2, argument(1 + upper),
                       &communicators.emplace_back());
}
int send_late(MPI_Comm, int, void* seconds, void*) {  // a function of an attribute, inside MPI_Finalize
  sleep(*static_cast<unsigned*>(seconds));
  return MPI_Send(out.data(), 1, MPI_INT, 1, 9, MPI_COMM_WORLD);
}
OPERATION(send_in_finalize) {
  static auto seconds = static_cast<unsigned>(argument(0));
  int key;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, send_late, &key, nullptr),
      MPI_Comm_set_attr(MPI_COMM_SELF, key, &seconds);
}
OPERATION(spawn) {  // a child that sends to rank 0 after some seconds
  std::string child = "child " + std::to_string(argument(0));
  char *arguments[] = {child.data(), nullptr}, file[] = "/proc/self/exe", path[4096] = {};
  if (readlink(file, path, sizeof path - 1) < 0) std::abort();
  MPI_Comm_spawn(path, arguments, 1, MPI_INFO_NULL, 0, MPI_COMM_WORLD, &communicators.emplace_back(),
                 MPI_ERRCODES_IGNORE);
}
OPERATION(alltoallw) {  // one rank sends nothing to another one
  const auto n = static_cast<std::size_t>(size);
  std::vector<int> gives(n, 4), takes(n, 4), places(n);
  std::vector<MPI_Datatype> types(n, MPI_INT);
  for (int i = 0; i < size; ++i) places[static_cast<std::size_t>(i)] = 16 * i;
  if (rank == argument(0)) gives[static_cast<std::size_t>(argument(1))] = 0;
  MPI_Alltoallw(out.data(), gives.data(), places.data(), types.data(), in.data(), takes.data(), places.data(),
                types.data(), MPI_COMM_WORLD);
}
OPERATION(neighbours) {  // each expects data from itself, and sends to the right
  const int to = (rank + 1) % size, one = 1;
  MPI_Comm graph;
  MPI_Dist_graph_create_adjacent(MPI_COMM_WORLD, 1, &rank, &one, 1, &to, &one, MPI_INFO_NULL, 0, &graph);
  MPI_Neighbor_allgather(out.data(), 1, MPI_INT, in.data(), 1, MPI_INT, graph);
}
OPERATION(fail_to_send) {  // a buffered message for which there is no room
  static char buffer[1000];
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN), MPI_Buffer_attach(buffer, sizeof buffer);
  if (MPI_Bsend(out.data(), 1 << 20, MPI_INT, peer(), tag(), MPI_COMM_WORLD) == MPI_SUCCESS) std::abort();
}
void never_end(void*, void*, int*, MPI_Datatype*) {
  for (;;) pause();
}
OPERATION(reduce_for_ever) {
  MPI_Op operation;
  MPI_Op_create(never_end, 1, &operation), MPI_Allreduce(out.data(), in.data(), 1, MPI_INT, operation, MPI_COMM_WORLD);
}
OPERATION(match_only) {
  MPI_Message message;
  MPI_Mprobe(peer(), tag(), MPI_COMM_WORLD, &message, none());
}
std::vector<MPI_Win> windows;
std::thread heartbeat;
MPI_Group group_of(int one) {
  MPI_Group all, chosen;
  MPI_Comm_group(MPI_COMM_WORLD, &all), MPI_Group_incl(all, 1, &one, &chosen);
  return chosen;
}
MPI_File file;
OPERATION(open_file) {
  int name = getpid();  // of rank 0: each rank's parent is another who_waits
  MPI_Bcast(&name, 1, MPI_INT, 0, MPI_COMM_WORLD);
  MPI_File_open(MPI_COMM_WORLD, ("waiting_programs." + std::to_string(name)).c_str(),
                MPI_MODE_CREATE | MPI_MODE_RDWR | MPI_MODE_DELETE_ON_CLOSE, MPI_INFO_NULL, &file);
}

// Calls with wrong arguments. Each must end with its error, and no call of who_waits with another.
int errors = 0;
void count_error(MPI_Comm*, int*, ...) { ++errors; }
OPERATION(mistakes) {
  MPI_Errhandler handler;
  MPI_Comm_create_errhandler(count_error, &handler);
  for (const MPI_Comm one : {MPI_COMM_WORLD, MPI_COMM_SELF}) MPI_Comm_set_errhandler(one, handler);
  auto expect = [wanted = 0](int result, int error) mutable {
    int found;
    MPI_Error_class(result, &found);
    if (found != error || errors != ++wanted) std::abort();
  };
  MPI_Request request = MPI_REQUEST_NULL;
  MPI_Comm made;
  expect(MPI_Send(out.data(), 1, MPI_INT, 0, 1, MPI_COMM_NULL), MPI_ERR_COMM);
  expect(MPI_Isend(out.data(), 1, MPI_DATATYPE_NULL, 0, 1, MPI_COMM_WORLD, &request), MPI_ERR_TYPE);
  expect(MPI_Allreduce(out.data(), in.data(), 1, MPI_INT, MPI_SUM, MPI_COMM_NULL), MPI_ERR_COMM);
  expect(MPI_Bcast(out.data(), 1, MPI_DATATYPE_NULL, 0, MPI_COMM_WORLD), MPI_ERR_TYPE);
  expect(MPI_Comm_dup(MPI_COMM_NULL, &made), MPI_ERR_COMM);
  MPI_Errhandler_free(&handler);
}

OPERATION(send) { send_to(peer(), count(), comm(3)); }
OPERATION(ssend) { MPI_Ssend(out.data(), count(), MPI_INT, peer(), tag(), comm(3)); }
OPERATION(receive) { MPI_Recv(in.data(), count(), MPI_INT, peer(), tag(), comm(3), none()); }
OPERATION(probe) { MPI_Probe(peer(), tag(), comm(3), none()); }
OPERATION(isend) { MPI_Isend(out.data(), count(), MPI_INT, peer(), tag(), comm(3), new_request()); }
OPERATION(ireceive) { MPI_Irecv(in.data(), count(), MPI_INT, peer(), tag(), comm(3), new_request()); }
OPERATION(ibarrier) { MPI_Ibarrier(comm(0), new_request()); }
OPERATION(iall_reduce) { MPI_Iallreduce(out.data(), in.data(), 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD, new_request()); }
OPERATION(wait) { MPI_Wait(&requests.back(), none()); }
OPERATION(wait_all) { MPI_Waitall(number_of_requests(), requests.data(), MPI_STATUSES_IGNORE); }
OPERATION(wait_any) {  // and cancels the first
  int which;
  MPI_Waitany(number_of_requests(), requests.data(), &which, none());
  MPI_Cancel(&requests[0]), MPI_Request_free(&requests[0]);
}
OPERATION(exchange) {
  const int big = static_cast<int>(out.size()), to = (rank + 1) % size, from = (rank + size - 1) % size;
  MPI_Sendrecv(out.data(), big, MPI_INT, to, 1, in.data(), big, MPI_INT, from, 1, MPI_COMM_WORLD, none());
}
OPERATION(barrier) { MPI_Barrier(comm(0)); }
OPERATION(all_reduce) { all_reduce(argument(0, 1)); }
OPERATION(broadcast) { MPI_Bcast(out.data(), static_cast<int>(out.size()), MPI_INT, argument(0), MPI_COMM_WORLD); }
OPERATION(reduce) { MPI_Reduce(out.data(), in.data(), 1, MPI_INT, MPI_SUM, argument(0), MPI_COMM_WORLD); }
OPERATION(gather) {
  MPI_Gather(out.data(), argument(1, 9), MPI_INT, in.data(), 9, MPI_INT, argument(0), MPI_COMM_WORLD);
}
OPERATION(duplicate) { MPI_Comm_dup(MPI_COMM_WORLD, &communicators.emplace_back()); }
OPERATION(name) { MPI_Comm_set_name(communicators.back(), "of the test"); }
OPERATION(deeper) { deeper(argument(0)); }
OPERATION(self) { communicators.push_back(MPI_COMM_SELF); }
OPERATION(sloppy_broadcast) { MPI_Bcast(out.data(), rank == 0 ? 6 : 64, MPI_CHAR, 0, MPI_COMM_WORLD); }
OPERATION(disconnect) { MPI_Comm_disconnect(&communicators.back()); }
OPERATION(start_receive) {
  MPI_Recv_init(in.data(), 1, MPI_INT, peer(), tag(), MPI_COMM_WORLD, new_request());
  MPI_Startall(1, &requests.back());
}
OPERATION(cancel) { MPI_Cancel(&requests.back()), MPI_Wait(&requests.back(), none()); }
OPERATION(many_tags) {
  for (int i = 0; i < argument(1); ++i)
    MPI_Sendrecv_replace(in.data(), 1, MPI_INT, peer(), i, peer(), i, MPI_COMM_WORLD, none());
}
OPERATION(idup) {
  MPI_Comm_idup(MPI_COMM_WORLD, &communicators.emplace_back(), new_request()), MPI_Wait(&requests.back(), none());
}
OPERATION(late_thread) {  // sends after some seconds
  static std::thread thread([seconds = static_cast<unsigned>(argument(2)), to = peer(), with = tag()] {
    sleep(seconds), MPI_Send(out.data(), 1, MPI_INT, to, with, MPI_COMM_WORLD);
  });
  thread.detach();
}
OPERATION(two_threads) {
  std::thread other([] { MPI_Barrier(MPI_COMM_WORLD); });
  all_reduce(1), other.join();
}
OPERATION(make_window) { MPI_Win_create(in.data(), 4, 4, MPI_INFO_NULL, MPI_COMM_WORLD, &windows.emplace_back()); }
OPERATION(lock) { MPI_Win_lock(MPI_LOCK_EXCLUSIVE, peer(), 0, windows[0]); }
OPERATION(lock_all) { MPI_Win_lock_all(0, windows[0]), MPI_Win_unlock_all(windows[0]); }
OPERATION(put) {
  MPI_Put(out.data(), 1, MPI_INT, peer(), 0, 1, MPI_INT, windows[0]), MPI_Win_flush(peer(), windows[0]);
}
OPERATION(poll) {  // the windows in turn, on each rank, until one is changed
  for (const MPI_Win window : windows) MPI_Win_lock_all(0, window);
  for (int one = 1, zero = 0, i = 0; zero != 1; ++i)
    for (const MPI_Win window : windows)
      MPI_Compare_and_swap(&one, &one, &zero, MPI_INT, i % argument(0), 0, window), MPI_Win_flush_all(window);
}
OPERATION(count_tasks) {  // for some seconds
  const double end = MPI_Wtime() + argument(0);
  MPI_Win_lock_all(0, windows[0]);
  for (int one = 1, task; MPI_Wtime() < end; usleep(1000)) {
    MPI_Fetch_and_op(&one, &task, MPI_INT, 0, 0, MPI_SUM, windows[0]);
    MPI_Win_flush(0, windows[0]);
  }
  MPI_Win_unlock_all(windows[0]);
}
OPERATION(heartbeat_thread) {  // so many messages to itself
  heartbeat = std::thread([where = comm(0), beats = argument(1)] {
    for (int beat = 0; beat < beats; ++beat, usleep(100'000))
      MPI_Sendrecv_replace(&beat, 1, MPI_INT, rank, 1, rank, 1, where, none());
  });
}
OPERATION(join_thread) { heartbeat.join(); }
OPERATION(fence) { MPI_Win_fence(0, windows[0]); }
OPERATION(expose) { MPI_Win_post(group_of(peer()), 0, windows[0]), MPI_Win_wait(windows[0]); }
OPERATION(access) {  // seconds later
  MPI_Win_start(group_of(peer()), 0, windows[0]), sleep(static_cast<unsigned>(argument(1)));
  MPI_Win_complete(windows[0]);
}
OPERATION(free_window) { MPI_Win_free(&windows.at(static_cast<std::size_t>(argument(0)))); }
OPERATION(locked_thread) {  // the main thread waits for a mutex that a thread holds in its receive
  static std::mutex mutex;
  std::thread thread([from = peer()] {
    const std::lock_guard lock(mutex);
    MPI_Recv(in.data(), 1, MPI_INT, from, 1, MPI_COMM_WORLD, none());
  });
  usleep(300'000), mutex.lock(), thread.join();
}
OPERATION(write_file) { MPI_File_write_all(file, out.data(), 16, MPI_INT, none()); }
OPERATION(close_file) { MPI_File_close(&file); }
#if MPI_VERSION >= 4
OPERATION(gather_large) { MPI_Gather_c(out.data(), 9, MPI_INT, in.data(), 9, MPI_INT, argument(0), MPI_COMM_WORLD); }
OPERATION(persistent_barriers) {
  MPI_Barrier_init(MPI_COMM_WORLD, MPI_INFO_NULL, new_request());
  for (int i = 0; i < 5 - (rank == argument(0)); ++i) MPI_Start(&requests.back()), MPI_Wait(&requests.back(), none());
}
#endif
OPERATION(region) { MPI_Pcontrol(argument(0), ("region " + std::to_string(argument(1))).c_str()); }
OPERATION(no_region) { MPI_Pcontrol(argument(0)), MPI_Pcontrol(1, argument(0)), MPI_Pcontrol(-1, "\n"); }
#ifdef WITH_NVTX
OPERATION(push) { nvtxRangePushA("a range"); }
OPERATION(pop) { nvtxRangePop(); }
#endif
OPERATION(exit) { _exit(argument(0)); }
OPERATION(leave) { std::exit(argument(0)); }
OPERATION(end) { MPI_Finalize(), std::exit(argument(0)); }
OPERATION(raise) { ::raise(argument(0)); }
OPERATION(mpi_abort) { MPI_Abort(MPI_COMM_WORLD, argument(0)); }
OPERATION(abort) { std::abort(); }
OPERATION(barrier_in_a_thread) {
  std::thread([] { MPI_Barrier(MPI_COMM_WORLD); }).join();
}
OPERATION(compute_in_a_thread) { std::thread(compute).join(); }
OPERATION(sleep) { ::sleep(static_cast<unsigned>(argument(0))); }
OPERATION(nap) { usleep(1000 * static_cast<unsigned>(argument(0))); }
OPERATION(run_sleep) {
  if (std::system(("sleep " + std::to_string(argument(0))).c_str())) std::abort();
}

void run(const std::string& statement) {
  const std::map<std::string, int> names = {{"left", (rank + size - 1) % size},
                                            {"right", (rank + 1) % size},
                                            {"any", MPI_ANY_SOURCE},
                                            {"big", static_cast<int>(out.size())}};
  std::istringstream words(statement);
  std::string ranks, operation;
  if (!(words >> ranks >> operation)) return;
  const bool all_but = ranks[0] == '!', named = std::atoi(ranks.c_str() + all_but) == rank;
  if (ranks != "*" && named == all_but) return;
  const std::size_t star = operation.find('*');
  const int times = star == std::string::npos ? 1 : std::stoi(operation);
  arguments.clear();
  for (std::string word; words >> word;) arguments.push_back(names.contains(word) ? names.at(word) : std::stoi(word));
  for (int i = 0; i < times; ++i) operations.at(operation.substr(star + 1))();
}

// Steps of a message to the right and a sum. Before 16 of them, rank 2 sleeps 100 ms, in one piece or between calls
// that need no other rank. Each rank prints its calls of 50 ms or more: rank, call, ms of its start, ms; then its
// seconds.
void log_steps(int steps, std::chrono::duration<double> initializing) {
  std::string log;
  const double start = MPI_Wtime();
  const auto timed = [&](const char* name, const auto& call) {
    const double enter = MPI_Wtime();
    call();
    if (const double leave = MPI_Wtime(); leave - enter >= 0.05)
      log += std::to_string(rank) + " " + name + " " + std::to_string(1e3 * (enter - start)) + " " +
             std::to_string(1e3 * (leave - enter)) + "\n";
  };
  for (int i = 0; i < steps; ++i) {
    if (const int part = steps / 16; rank == 2 && i % part == part / 2) {
      const int naps = i / part % 2 ? 20 : 1;
      for (int nap = 0; nap < naps; ++nap) {
        usleep(100'000 / static_cast<unsigned>(naps));
        MPI_Allreduce(out.data(), in.data(), 1, MPI_INT, MPI_SUM, MPI_COMM_SELF);
      }
    }
    timed("MPI_Sendrecv", [] {
      MPI_Sendrecv(out.data(), 1, MPI_INT, (rank + 1) % size, 1, in.data(), 1, MPI_INT, (rank + size - 1) % size, 1,
                   MPI_COMM_WORLD, none());
    });
    timed("MPI_Allreduce", [] { all_reduce(1); });
  }
  std::printf("%s%d all 0 %f\n", log.c_str(), rank, 1e3 * (MPI_Wtime() - start + initializing.count()));
}

// What calls cost that need no other rank, in ns.
void print_cost_of_calls() {
  const auto each = [](int times, const auto& call) {
    const double start = MPI_Wtime();
    for (int i = 0; i < times; ++i) call();
    return 1e9 * (MPI_Wtime() - start) / times;
  };
  const auto sum = [] { MPI_Allreduce(out.data(), in.data(), 2, MPI_INT, MPI_SUM, MPI_COMM_SELF); };
  const auto messages = [] {
    MPI_Request r;
    MPI_Irecv(in.data(), 2, MPI_INT, 0, 1, MPI_COMM_SELF, &r);
    MPI_Send(out.data(), 2, MPI_INT, 0, 1, MPI_COMM_SELF), MPI_Wait(&r, MPI_STATUS_IGNORE);
  };
  each(100'000, sum), each(100'000, messages);
  std::printf("%.1f %.1f\n", each(3'000'000, sum), each(1'000'000, messages) / 3);
}

}  // namespace

int main(int argc, char** argv) {
#if MPI_VERSION >= 4
  if (argc == 2 && argv[1] == std::string("* session")) {
    MPI_Session session;
    MPI_Group group;
    MPI_Comm all;
    MPI_Session_init(MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &session);
    MPI_Group_from_session_pset(session, "mpi://WORLD", &group);
    MPI_Comm_create_from_group(group, "all", MPI_INFO_NULL, MPI_ERRORS_ARE_FATAL, &all);
    MPI_Comm_rank(all, &rank);
    return MPI_Recv(in.data(), 1, MPI_INT, rank ^ 1, 7, all, MPI_STATUS_IGNORE);
  }
#endif
  const auto started = std::chrono::steady_clock::now();
  int provided;
  const bool threads = argc == 2 && std::string(argv[1]).find("_thread") != std::string::npos;
  MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SERIALIZED, &provided);
  const auto initialized = std::chrono::steady_clock::now();
  if (MPI_Comm parent; MPI_Comm_get_parent(&parent), argc == 2 && parent != MPI_COMM_NULL) {
    sleep(static_cast<unsigned>(std::atoi(argv[1] + sizeof "child")));
    MPI_Send(out.data(), 1, MPI_INT, 0, 1, parent), MPI_Comm_disconnect(&parent);
    return MPI_Finalize();
  }
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  communicators = {MPI_COMM_WORLD};
  const std::string what = argc > 1 ? argv[1] : "* unknown";
  for (int i = 0; i < 20 && argc == 5 && what == "sums"; ++i) {  // sums RANK MS COUNT: 20 sums, for which RANK is late
    usleep(1000 * static_cast<unsigned>(rank == std::atoi(argv[2]) ? std::atoi(argv[3]) : 1));
    all_reduce(std::atoi(argv[4]));
  }
  if (argc == 3 && what == "steps") log_steps(std::atoi(argv[2]), initialized - started);
  if (what == "calls") print_cost_of_calls();
  if (what == "sums" || what == "steps" || what == "calls") return MPI_Finalize();
  for (int i = 0; i < 3; ++i) all_reduce(1);
  if (rank == 0) std::puts("3 sums are right"), std::fflush(stdout);
  std::istringstream statements(what);
  for (std::string one; std::getline(statements, one, ';');) run(one);
  MPI_Finalize();
  if (rank == 0) std::puts("done");
}
