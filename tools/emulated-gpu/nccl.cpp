// NCCL on the emulated CUDA runtime: its calls are tasks of streams, executed by a hub (hub.hpp).
// See README.md. CMakeLists.txt adds the functions of nccl.h that are not here: they fail.
#include "device.hpp"
#include "hub.hpp"
#include "member.hpp"
#include "wire.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

// NCCL's name for the type behind a communicator's handle. Handles are never deleted, so that later use is detected.
struct ncclComm {
  std::shared_ptr<emulated_gpu::Member> member;  // null: it has ended
  std::string ended_by;
};

namespace emulated_gpu {
namespace {

// The last error of a call, for ncclGetLastError.
thread_local std::string last_error;

// All communicators of this process.
struct Handles {
  std::mutex mutex;
  std::set<ncclComm_t> all;
};

void require(bool right, ncclResult_t code, const std::string& why) {
  if (!right) throw NcclError{code, why};
}

std::shared_ptr<Member> member_of(ncclComm_t comm, const std::string& call) {
  require(comm, ncclInvalidArgument, call + ": the communicator is null");
  Handles& handles = the<Handles>();
  const std::lock_guard lock(handles.mutex);
  require(handles.all.count(comm), ncclInvalidArgument, call + ": this is not a communicator");
  require(comm->member != nullptr, ncclInvalidArgument, call + " after " + comm->ended_by);
  return comm->member;
}

// Takes the communicator out of its handle.
std::shared_ptr<Member> retire(ncclComm_t comm, const char* call) {
  const std::lock_guard lock(the<Handles>().mutex);
  comm->ended_by = call;
  return std::exchange(comm->member, nullptr);
}

struct Enqueued {
  std::shared_ptr<Member> member;
  Call call;
  cudaStream_t stream;
};

struct Group {
  int depth = 0;
  NcclError failure;  // of the first call that failed
  std::vector<Enqueued> calls;
  std::vector<std::function<void()>> joins;

  ~Group() {
    if (depth > 0 && !calls.empty())
      say(fmt::format(
          "a thread ended inside a group, without ncclGroupEnd: {} of its calls never made, the first is {}",
          calls.size(), text_of(calls[0].call.post)));
  }
};
thread_local Group group;

// Calls the functions, each on a thread unless it is alone, and throws the first failure.
void at_once(const std::vector<std::function<void()>>& functions) {
  std::optional<NcclError> first;
  std::mutex mutex;
  const auto call = [&](const std::function<void()>& function) {
    try {
      function();
    } catch (const NcclError& failure) {
      const std::lock_guard lock(mutex);
      if (!first) first = failure;
    }
  };
  std::vector<std::thread> threads;
  for (const auto& function : functions)
    if (functions.size() > 1) threads.emplace_back(call, function);
  if (functions.size() == 1) call(functions[0]);
  for (std::thread& thread : threads) thread.join();
  if (first) throw *first;
}

struct Launch {
  std::shared_ptr<Member> member;
  cudaStream_t stream;
  std::vector<Call> calls{};
};

void end_group() {
  Group& open_group = group;
  require(open_group.depth > 0, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--open_group.depth > 0) return;
  const auto calls = std::exchange(open_group.calls, {});
  const auto joins = std::exchange(open_group.joins, {});
  if (const NcclError in_group = std::exchange(open_group.failure, {}); in_group.code != ncclSuccess)
    throw NcclError{in_group.code, "ncclGroupEnd: in this group: " + in_group.text};
  at_once(joins);
  std::vector<Launch> launches;
  for (const auto& [member, call, stream] : calls) {
    auto found = std::ranges::find(launches, member, &Launch::member);
    if (found == launches.end()) found = launches.insert(found, {member, stream});
    require(found->stream == stream, ncclInvalidUsage,
            "ncclGroupEnd: calls of one communicator on two streams are not emulated");
    found->calls.push_back(call);
  }
  std::vector<std::function<void()>> connects;
  for (const Launch& one : launches) connects.emplace_back([&one] { one.member->connect(one.calls); });
  at_once(connects);
  for (const Launch& one : launches) one.member->issue(one.calls, one.stream);
}

// Runs the body of a function of NCCL's interface. An error also makes the open group fail.
template <class Function>
ncclResult_t guarded(Function&& function) try {
  function();
  return ncclSuccess;
} catch (const NcclError& failure) {
  last_error = failure.text;
  if (group.depth > 0 && group.failure.code == ncclSuccess) group.failure = failure;
  return failure.code;
}

multinode::DataType data_type(const std::string& call, ncclDataType_t type) {
  constexpr std::array in_our_order = {ncclFloat32, ncclFloat64, ncclFloat16, ncclBfloat16, ncclInt8,
                                       ncclUint8,   ncclInt32,   ncclUint32,  ncclInt64,    ncclUint64};
  const auto* const found = std::ranges::find(in_our_order, type);
  require(found != in_our_order.end(), ncclInvalidArgument,
          fmt::format("{}: type {} is not emulated (10 and 11 are floats of 8 bits)", call, static_cast<int>(type)));
  return multinode::data_types[static_cast<std::size_t>(found - in_our_order.begin())];
}

ncclResult_t put(Op op, const void* in, void* out, std::size_t count, ncclDataType_t type, int redop, int peer,
                 ncclComm_t comm, cudaStream_t stream) {
  return guarded([&] {
    const std::string name = name_of(op);
    const auto owner = member_of(comm, name);
    Member& member = *owner;
    member.require_usable(name);
    const auto require = [&](bool right, ncclResult_t code, const std::string& why) {
      if (!right) throw NcclError{code, fmt::format("{} on rank {}: {}", name, member.rank(), why)};
    };
    Call call{.post = {.op = op, .type = data_type(name, type), .count = count}, .in = in, .out = out};
    if (reduces(op)) {
      using enum multinode::Reduction;
      constexpr std::array built_in = {sum, product, max, min, average};
      require(redop >= 0 && redop < ncclNumOps, ncclInvalidArgument, fmt::format("there is no reduction {}", redop));
      call.post.reduction = built_in[static_cast<std::size_t>(redop)];
    }
    if (has_root(op) || !is_collective(op)) {
      require(
          peer >= 0 && peer < member.size(), ncclInvalidArgument,
          fmt::format("{} {} of a communicator of {} ranks", is_collective(op) ? "root" : "peer", peer, member.size()));
      call.post.peer = peer;
    }
    const cudaStream_t found = find_stream(stream, member.device());
    require(found, ncclInvalidArgument, "the stream was destroyed or never created");
    require(device_of(found) == member.device(), ncclInvalidUsage,
            fmt::format("the stream is of device {}, the communicator's is {}", device_of(found), member.device()));
    const int rank = member.rank(), size = member.size();
    const auto blocks = [&](std::size_t number) { return number * call.post.bytes(count); };
    const std::string in_refusal = refusal(in, blocks(blocks_in(call.post, rank, size)), member.device());
    require(in_refusal.empty(), ncclInvalidArgument, "the send buffer: " + in_refusal);
    const std::string out_refusal = refusal(out, blocks(blocks_out(call.post, rank, size)), member.device());
    require(out_refusal.empty(), ncclInvalidArgument, "the receive buffer: " + out_refusal);
    ncclGroupStart();
    group.calls.push_back({owner, call, found});
    end_group();
  });
}

// The program may have been compiled with an older header, whose structure is shorter. Other members are hints here.
void check(const ncclConfig_t* given) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const auto magic = config.magic;
  if (given) {
    config.magic = 0;
    std::memcpy(&config, given, std::min(given->size, sizeof config));
  }
  require(config.magic == magic, ncclInvalidArgument,
          "ncclCommInitRankConfig: the ncclConfig_t is not from NCCL_CONFIG_INITIALIZER");
  require(config.blocking == NCCL_CONFIG_UNDEF_INT || config.blocking == 1, ncclInvalidArgument,
          "ncclCommInitRankConfig: emulated-gpu has blocking communicators only (blocking = 1)");
}

// Sets *comm to a new communicator, which joins the hub of `id` when the group ends.
void initialize(const std::string& call, ncclComm_t* comm, int size, const ncclUniqueId& id, int rank) {
  require(comm, ncclInvalidArgument, call + ": the output pointer is null");
  *comm = nullptr;
  require(size >= 1 && rank >= 0 && rank < size, ncclInvalidArgument,
          fmt::format("{}: rank {} of {} ranks", call, rank, size));
  const std::string text(id.internal, strnlen(id.internal, sizeof id.internal)), machine = own_machine();
  require(text.starts_with(std::string(id_mark) + " "), ncclInvalidArgument,
          call +
              ": the unique id is not from ncclGetUniqueId of emulated-gpu: all ranks must have the same id and use "
              "emulated-gpu");
  int device = 0;
  require(cudaGetDevice(&device) == cudaSuccess, ncclUnhandledCudaError,
          call + ": " + cudaGetErrorString(cudaErrorNoDevice));
  ncclGroupStart();
  group.joins.push_back([=] {
    auto member = std::make_shared<Member>(call, text, rank, size, device, machine);
    const std::lock_guard lock(the<Handles>().mutex);
    the<Handles>().all.insert(*comm = new ncclComm{std::move(member), ""});
  });
  end_group();
}

void register_buffer(const std::string& call, ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  const auto member = member_of(comm, call);
  const std::string why = refusal(memory, bytes, member->device());
  require(why.empty(), ncclInvalidArgument, call + ": " + why);
  *handle = memory;
}

template <class Question>
ncclResult_t ask(const char* call, ncclComm_t comm, int* answer, Question&& question) {
  return guarded([&] {
    const auto member = member_of(comm, call);
    require(answer, ncclInvalidArgument, std::string(call) + ": the output pointer is null");
    *answer = question(*member);
  });
}

struct AtExit {
  ~AtExit() {
    const auto left = [] {
      const std::lock_guard lock(the<Handles>().mutex);
      return std::ranges::count_if(the<Handles>().all, [](ncclComm_t comm) { return comm->member != nullptr; });
    }();
    if (left && checks()) report(fmt::format("leaked at exit: {} communicator{}", left, left > 1 ? "s" : ""));
    wait_for_guests();
  }
} at_exit;

}  // namespace

// Of the functions that are not here (CMakeLists.txt makes them).
void refuse_call(const std::string& why) {
  guarded([&] { throw NcclError{ncclInvalidUsage, why}; });
}

}  // namespace emulated_gpu

using namespace emulated_gpu;

extern "C" {

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t code) {
  static constexpr const char* texts[] = {"no error",
                                          "unhandled cuda error",
                                          "unhandled system error",
                                          "internal error",
                                          "invalid argument",
                                          "invalid usage",
                                          "remote process exited or there was a network error",
                                          "NCCL operation in progress"};
  return static_cast<std::size_t>(code) < std::size(texts) ? texts[code] : "unknown result code";
}
const char* ncclGetLastError(ncclComm_t) { return last_error.c_str(); }

// Communicators

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return guarded([&] {
    std::string text = "emulated-gpu without devices";  // like NCCL, fails later, when the GPU is needed
    require(id, ncclInvalidArgument, "ncclGetUniqueId: the output pointer is null");
    if (int devices = 0; cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) text = start_hub();
    *id = {};
    text.copy(id->internal, sizeof id->internal - 1);
  });
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return guarded([&] {
    check(config);
    initialize("ncclCommInitRankConfig", comm, size, id, rank);
  });
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return guarded([&] { initialize("ncclCommInitRank", comm, size, id, rank); });
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  const std::string call = "ncclCommInitAll";
  int before = 0;
  cudaGetDevice(&before);
  const ncclResult_t code = guarded([&] {
    require(comms && count >= 0, ncclInvalidArgument, call + ": no output pointer, or a negative number of devices");
    ncclUniqueId id;
    if (const ncclResult_t made = ncclGetUniqueId(&id); made != ncclSuccess) throw NcclError{made, last_error};
    ncclGroupStart();
    for (int i = 0; i < count; ++i)
      guarded([&] {
        const int device = devices ? devices[i] : i;
        require(cudaSetDevice(device) == cudaSuccess, ncclInvalidArgument,
                fmt::format("{}: Invalid device {}", call, device));
        initialize(call, &comms[i], count, id, i);
      });
    end_group();
  });
  cudaSetDevice(before);
  return code;
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  return ask("ncclCommCount", comm, count, [](const Member& member) { return member.size(); });
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  return ask("ncclCommUserRank", comm, rank, [](const Member& member) { return member.rank(); });
}
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device) {
  return ask("ncclCommCuDevice", comm, device, [](const Member& member) { return member.device(); });
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return guarded([&] {
    const NcclError failure = member_of(comm, "ncclCommGetAsyncError")->failure();
    *error = failure.code;
    if (!failure.text.empty()) last_error = failure.text;
  });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return;
    const auto member = member_of(comm, "ncclCommFinalize");
    member->require_usable("ncclCommFinalize");
    member->finalize("ncclCommFinalize");
  });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return;
    member_of(comm, "ncclCommDestroy")->finalize("ncclCommDestroy");
    if (const auto member = retire(comm, "ncclCommDestroy")) member->stop(Kind::goodbye);
  });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return;
    const auto member = member_of(comm, "ncclCommAbort");
    if (const char* debug = std::getenv("NCCL_DEBUG"); debug && std::string(debug) == "INFO")
      say(fmt::format("ncclCommAbort on rank {}", member->rank()));
    if (retire(comm, "ncclCommAbort")) member->stop(Kind::aborted);
  });
}

// Buffers

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 19, 0)
ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  return cudaMalloc(memory, bytes) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclMemFree(void* memory) {
  return cudaFree(memory) == cudaSuccess ? ncclSuccess : ncclUnhandledCudaError;
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  return guarded([&] { register_buffer("ncclCommRegister", comm, memory, bytes, handle); });
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void*) {
  return guarded([&] { member_of(comm, "ncclCommDeregister"); });
}
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, std::size_t bytes, ncclWindow_t* window, int) {
  return guarded(
      [&] { register_buffer("ncclCommWindowRegister", comm, memory, bytes, reinterpret_cast<void**>(window)); });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return guarded([&] { member_of(comm, "ncclCommWindowDeregister"); });
}
#endif

// Operations

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return guarded([] { end_group(); });
}

// An operation with two buffers, and what its call has between the type and the communicator
#define TWO_BUFFERS(name, operation, redop, root, ...)                                 \
  ncclResult_t name(const void* in, void* out, std::size_t count, ncclDataType_t type, \
                    __VA_ARGS__ __VA_OPT__(, ) ncclComm_t comm, cudaStream_t stream) { \
    return put(Op::operation, in, out, count, type, redop, root, comm, stream);        \
  }
TWO_BUFFERS(ncclAllReduce, all_reduce, op, 0, ncclRedOp_t op)
TWO_BUFFERS(ncclReduce, reduce, op, root, ncclRedOp_t op, int root)
TWO_BUFFERS(ncclReduceScatter, reduce_scatter, op, 0, ncclRedOp_t op)
TWO_BUFFERS(ncclAllGather, all_gather, 0, 0)
TWO_BUFFERS(ncclBroadcast, broadcast, 0, root, int root)
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
TWO_BUFFERS(ncclAlltoAll, all_to_all, 0, 0)
TWO_BUFFERS(ncclGather, gather, 0, root, int root)
TWO_BUFFERS(ncclScatter, scatter, 0, root, int root)
#endif
ncclResult_t ncclBcast(void* data, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t stream) {
  return put(Op::broadcast, data, data, count, type, 0, root, comm, stream);
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put(Op::send, data, nullptr, count, type, 0, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return put(Op::recv, nullptr, data, count, type, 0, peer, comm, stream);
}

}  // extern "C"
