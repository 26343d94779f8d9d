// nccl_mistakes: makes a mistake with NCCL on purpose and prints the errors that each rank gets, for the tests of the
// stand-in. If only one rank is wrong, it is rank 1. Exit status: 0; 2: there is no such mistake.
#include <multinode/device.hpp>
#include <multinode/program.hpp>
#include <multinode/program_options.hpp>

#include <chrono>
#include <functional>
#include <iostream>
#include <map>
#include <thread>

namespace {

using namespace std::chrono_literals;
using multinode::check;
using multinode::World;

class Rank {
 public:
  explicit Rank(World& world) : world_(world) {}
  ~Rank() {
    if (comm) ncclCommAbort(comm);
  }
  int number() const { return world_.rank(); }
  bool wrong() const { return number() == 1; }
  int next() const { return (number() + 1) % world_.size(); }
  int previous() const { return (number() + world_.size() - 1) % world_.size(); }

  void say(const std::string& what) const {
    std::cout << "rank " + std::to_string(number()) + ": " + what + "\n" << std::flush;
  }
  ncclResult_t hear(ncclResult_t code) const {
    if (code != ncclSuccess && code != ncclInProgress)
      say("code " + std::to_string(code) + ": " + ncclGetErrorString(code) + ": " + ncclGetLastError(comm));
    return code;
  }

  ncclResult_t initialize(int rank, int device) {
    check(cudaSetDevice(device));
    ncclUniqueId id{};
    if (number() == 0) check(ncclGetUniqueId(&id));
    world_.broadcast("id", {id.internal, sizeof id.internal}).copy(id.internal, sizeof id.internal);
    return hear(ncclCommInitRank(&comm, world_.size(), id, rank));
  }
  void start() {
    check(initialize(number(), number()));
    stream = std::make_unique<multinode::Stream>();
    in = std::make_unique<multinode::DeviceBuffer<float>>(100);
    out = std::make_unique<multinode::DeviceBuffer<float>>(100);
  }

  ncclResult_t all_reduce(std::size_t count = 100, ncclDataType_t type = ncclFloat32, ncclRedOp_t op = ncclSum) {
    return hear(ncclAllReduce(in->data(), out->data(), count, type, op, comm, stream->get()));
  }
  ncclResult_t broadcast(int root) {
    return hear(ncclBroadcast(in->data(), out->data(), 100, ncclFloat32, root, comm, stream->get()));
  }
  ncclResult_t send(int peer, std::size_t count = 100) {
    return hear(ncclSend(in->data(), count, ncclFloat32, peer, comm, stream->get()));
  }
  ncclResult_t receive(int peer, std::size_t count = 100, ncclDataType_t type = ncclFloat32) {
    return hear(ncclRecv(out->data(), count, type, peer, comm, stream->get()));
  }

  // Waits until the stream is done, NCCL reports an error, or 5 s have passed.
  void wait() {
    const auto end = std::chrono::steady_clock::now() + 5s;
    while (cudaStreamQuery(stream->get()) == cudaErrorNotReady) {
      ncclResult_t code = ncclSuccess;
      check(ncclCommGetAsyncError(comm, &code));
      if (hear(code) != ncclSuccess) return;
      if (std::chrono::steady_clock::now() > end) return say("gave up");
      std::this_thread::sleep_for(1ms);
    }
    say("done");
  }
  // Starts to join a communicator of 2 ranks, without waiting for the other.
  void begin_alone() {
    ncclUniqueId id{};
    check(ncclGetUniqueId(&id));
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    hear(ncclCommInitRankConfig(&comm, 2, id, 0, &config));
  }
  void all_reduce_after(ncclResult_t code) {
    check(code);
    all_reduce();
    comm = nullptr;
  }

  ncclComm_t comm = nullptr;
  std::unique_ptr<multinode::Stream> stream;
  std::unique_ptr<multinode::DeviceBuffer<float>> in, out;

 private:
  World& world_;
};

struct Mistake {
  enum { bare, started, waits } how;  // after start(); and then with wait()
  std::function<void(Rank&)> make;
};

const std::map<std::string, Mistake> mistakes = {
    {"none",
     {Mistake::started,
      [](Rank& r) {
        r.all_reduce();
        check(ncclGroupStart());
        r.send(r.next());
        r.receive(r.previous());
        check(ncclGroupEnd());
        r.wait();
        check(ncclCommDestroy(std::exchange(r.comm, nullptr)));
      }}},
    {"count", {Mistake::waits, [](Rank& r) { r.all_reduce(r.wrong() ? 50 : 100); }}},
    {"type", {Mistake::waits, [](Rank& r) { r.all_reduce(100, r.wrong() ? ncclInt32 : ncclFloat32); }}},
    {"reduction", {Mistake::waits, [](Rank& r) { r.all_reduce(100, ncclFloat32, r.wrong() ? ncclMax : ncclSum); }}},
    {"root", {Mistake::waits, [](Rank& r) { r.broadcast(r.wrong() ? 1 : 0); }}},
    {"root_out_of_range", {Mistake::started, [](Rank& r) { r.broadcast(7); }}},
    {"order",
     {Mistake::waits,
      [](Rank& r) {
        if (r.wrong()) r.broadcast(0);
        r.all_reduce();
        if (!r.wrong()) r.broadcast(0);
      }}},
    {"unpaired_send", {Mistake::waits, [](Rank& r) { r.wrong() ? ncclSuccess : r.send(1); }}},
    {"no_group", {Mistake::waits, [](Rank& r) { r.send(r.next()), r.receive(r.previous()); }}},
    {"no_group_end",
     {Mistake::started,
      [](Rank& r) {
        if (r.wrong()) check(ncclGroupStart());
        r.all_reduce();
        if (r.wrong())
          std::this_thread::sleep_for(3s);
        else
          r.wait();
      }}},
    {"group_end_without_start", {Mistake::bare, [](Rank& r) { r.hear(ncclGroupEnd()); }}},
    {"message_count", {Mistake::waits, [](Rank& r) { r.wrong() ? r.receive(0, 50) : r.send(1, 100); }}},
    {"message_type", {Mistake::waits, [](Rank& r) { r.wrong() ? r.receive(0, 100, ncclInt32) : r.send(1); }}},
    {"to_itself", {Mistake::started, [](Rank& r) { r.send(r.number()); }}},
    {"missing_collective", {Mistake::waits, [](Rank& r) { r.wrong() ? ncclSuccess : r.all_reduce(); }}},
    {"after_destroy", {Mistake::started, [](Rank& r) { r.all_reduce_after(ncclCommDestroy(r.comm)); }}},
    {"after_abort", {Mistake::started, [](Rank& r) { r.all_reduce_after(ncclCommAbort(r.comm)); }}},
    {"after_finalize", {Mistake::started, [](Rank& r) { check(ncclCommFinalize(r.comm)), r.all_reduce(); }}},
    {"device", {Mistake::bare, [](Rank& r) { r.initialize(r.number(), 9); }}},
    {"same_rank", {Mistake::bare, [](Rank& r) { r.initialize(0, r.number()); }}},
    {"same_gpu", {Mistake::bare, [](Rank& r) { r.initialize(r.number(), 0); }}},
    {"host_memory",
     {Mistake::started,
      [](Rank& r) {
        float numbers[100] = {};
        r.hear(ncclAllReduce(numbers, r.out->data(), 100, ncclFloat32, ncclSum, r.comm, r.stream->get()));
      }}},
    {"small_buffer",
     {Mistake::started,
      [](Rank& r) { r.hear(ncclAllGather(r.in->data(), r.out->data(), 100, ncclFloat32, r.comm, r.stream->get())); }}},
    {"stream_of_another_device",
     {Mistake::started,
      [](Rank& r) {
        check(cudaSetDevice(r.number() + 1));
        const multinode::Stream other;
        r.hear(ncclAllReduce(r.in->data(), r.out->data(), 100, ncclFloat32, ncclSum, r.comm, other.get()));
      }}},
    {"left_behind",
     {Mistake::started,
      [](Rank& r) {
        r.comm = nullptr;
        r.stream.release();
        r.in.release();
      }}},
    {"too_early",
     {Mistake::bare,
      [](Rank& r) {
        if (r.number() != 0) return;
        r.begin_alone();
        r.hear(ncclAllReduce(nullptr, nullptr, 0, ncclFloat32, ncclSum, r.comm, nullptr));
      }}},
    {"missing_rank",
     {Mistake::bare,
      [](Rank& r) {
        if (r.wrong()) return;
        r.begin_alone();
        std::this_thread::sleep_for(1500ms);
      }}},
};

}  // namespace

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  std::string name;
  boost::program_options::options_description known("Options of nccl_mistakes");
  known.add_options()("mistake", boost::program_options::value(&name)->required(), "name of the mistake");
  return multinode::run(
      {"nccl_mistakes", known, common,
       [&] {
         if (!mistakes.contains(name)) throw multinode::UsageError("no mistake '" + name + "'");
       }},
      argc, argv, [&](World& world) {
        Rank rank(world);
        const auto& [how, make] = mistakes.at(name);
        if (how != Mistake::bare) rank.start();
        make(rank);
        if (how == Mistake::waits) rank.wait();
        world.barrier("after the mistake");  // otherwise one rank's abort could precede another's mistake
        return 0;
      });
}
