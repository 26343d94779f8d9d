// NCCL on the emulated CUDA runtime: its calls are tasks of streams, executed by a hub (hub.hpp).
// See README.md. Functions of nccl.h that are not here fail: refused.cpp.in.
#include "device.hpp"
#include "hub.hpp"
#include "member.hpp"
#include "wire.hpp"

#include <fmt/format.h>
#include <nccl.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <thread>
#include <vector>

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

  static Handles& get() {
    static Handles& handles = *new Handles;  // threads may still use it when the process ends
    return handles;
  }
};

void require(bool right, ncclResult_t code, const std::string& why) {
  if (!right) throw NcclError{code, why};
}

std::shared_ptr<Member> member_of(ncclComm_t comm, const std::string& call) {
  require(comm, ncclInvalidArgument, call + ": the communicator is null");
  Handles& handles = Handles::get();
  const std::lock_guard lock(handles.mutex);
  require(handles.all.count(comm), ncclInvalidArgument, call + ": this is not a communicator");
  require(comm->member != nullptr, ncclInvalidArgument, call + " after " + comm->ended_by);
  return comm->member;
}

ncclComm_t new_handle(std::shared_ptr<Member> member) {
  Handles& handles = Handles::get();
  const std::lock_guard lock(handles.mutex);
  const auto comm = new ncclComm{std::move(member), ""};
  handles.all.insert(comm);
  return comm;
}

// Takes the communicator out of its handle.
std::shared_ptr<Member> retire(ncclComm_t comm, const char* call) {
  const std::lock_guard lock(Handles::get().mutex);
  comm->ended_by = call;
  return std::exchange(comm->member, nullptr);
}

struct Enqueued {
  std::shared_ptr<Member> member;
  Call call;
  cudaStream_t stream;
};
// Makes a communicator, as a job of `member`, which is the new one or its parent.
struct Start {
  std::shared_ptr<Member> member;
  std::function<void()> job;
  ncclComm_t* handle;
};

struct Group {
  int depth = 0;
  NcclError failure;  // of the first call that failed
  std::vector<Enqueued> calls;
  std::vector<Start> starts;
  std::map<std::string, int> alone;  // per communicator: the rank that this thread called for outside a group

  ~Group() {
    if (depth > 0 && !calls.empty())
      say(fmt::format(
          "a thread ended inside a group, without ncclGroupEnd: {} of its calls never made, the first is {}",
          calls.size(), text_of(calls[0].call.post)));
    end_wait(this);
  }
  void announce(const std::string& first) {
    if (depth > 1 && calls.size() + starts.size() == 1)  // depth 1 is the group of the call itself
      begin_wait(this, "a group has been open without ncclGroupEnd (its first call is " + first + ")");
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
  std::vector<Call> calls{};
  std::vector<cudaStream_t> streams{};

  void require_partners() const {
    for (const auto& [from, to] : {std::pair(Op::send, Op::recv), std::pair(Op::recv, Op::send)}) {
      const auto to_itself = [&](Op op) {
        return std::ranges::count_if(calls,
                                     [&](const Call& c) { return c.post.op == op && c.post.peer == member->rank(); });
      };
      require(to_itself(from) <= to_itself(to), ncclInvalidUsage,
              fmt::format("{} of rank {} with itself, without the {} in the same group", name_of(from), member->rank(),
                          name_of(to)));
    }
  }
};

ncclResult_t launch(const std::vector<Enqueued>& all) {
  std::vector<Launch> launches;
  for (const auto& [member, call, stream] : all) {
    auto found = std::ranges::find(launches, member, &Launch::member);
    if (found == launches.end()) found = launches.insert(found, {member});
    found->calls.push_back(call);
    if (std::ranges::find(found->streams, stream) == found->streams.end()) found->streams.push_back(stream);
  }
  std::vector<std::function<void()>> connects;
  for (const Launch& one : launches) {
    one.require_partners();
    if (one.member->blocking()) connects.emplace_back([&one] { one.member->connect(one.calls); });
  }
  at_once(connects);
  ncclResult_t worst = ncclSuccess;
  for (const Launch& one : launches) {
    const ncclResult_t code = one.member->run([one] {
      if (!one.member->blocking()) one.member->connect(one.calls);
      one.member->issue(one.calls, one.streams);
    });
    if (code != ncclSuccess) worst = code;
  }
  return worst;
}

// Runs the jobs of several members at once, those of one in the order of the calls.
ncclResult_t start(const std::vector<Start>& starts) {
  ncclResult_t worst = ncclSuccess;
  std::map<Member*, std::vector<const Start*>> of_members;
  for (const Start& one : starts) of_members[one.member.get()].push_back(&one);
  std::vector<std::function<void()>> runs;
  for (const auto& of_member : of_members)
    runs.emplace_back([&worst, &starts = of_member.second] {
      for (const Start* const one : starts) {
        try {
          if (one->member->run(one->job) != ncclSuccess) worst = ncclInProgress;
        } catch (const NcclError&) {
          *one->handle = nullptr;
          throw;
        }
      }
    });
  if (starts.empty() || starts[0].member->blocking())
    at_once(runs);
  else
    for (const auto& run : runs) run();
  return worst;
}

ncclResult_t end_group() {
  Group& open_group = group;
  if (open_group.depth == 0) throw NcclError{ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart"};
  if (--open_group.depth > 0) return ncclSuccess;
  end_wait(&open_group);
  const auto calls = std::exchange(open_group.calls, {});
  const auto starts = std::exchange(open_group.starts, {});
  if (const NcclError in_group = std::exchange(open_group.failure, {}); in_group.code != ncclSuccess)
    throw NcclError{in_group.code, "ncclGroupEnd: in this group: " + in_group.text};
  std::optional<bool> blocking;
  const auto require_same = [&](const std::shared_ptr<Member>& member) {
    require(blocking.value_or(member->blocking()) == member->blocking(), ncclInvalidArgument,
            "ncclGroupEnd: blocking and nonblocking communicators are not allowed in the same group");
    blocking = member->blocking();
  };
  for (const Start& one : starts) require_same(one.member);
  for (const Enqueued& one : calls) require_same(one.member);
  const ncclResult_t started = start(starts);
  return calls.empty() ? started : launch(calls);
}

// Runs the body of a function of NCCL's interface. An error also makes the open group fail.
template <class Function>
ncclResult_t guarded(Function&& function) try {
  if constexpr (std::is_void_v<decltype(function())>) {
    function();
    return ncclSuccess;
  } else {
    return function();
  }
} catch (const NcclError& failure) {
  last_error = failure.text;
  if (group.depth > 0 && group.failure.code == ncclSuccess) group.failure = failure;
  return failure.code;
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
    require(size_of(type) > 0, ncclInvalidArgument, fmt::format("there is no type {}", static_cast<int>(type)));
    Call call{.post = {.op = op, .type = type, .count = count}, .in = in, .out = out};
    if (reduces(op)) {
      using enum multinode::Reduction;
      constexpr std::array built_in = {sum, product, max, min, average};
      if (redop >= 0 && redop < ncclNumOps) {
        call.post.reduction = built_in[static_cast<std::size_t>(redop)];
      } else {
        const std::lock_guard lock(member.operators_mutex);
        const auto found = member.operators.find(redop);
        require(found != member.operators.end(), ncclInvalidArgument,
                fmt::format("no reduction {} in this communicator", redop));
        require(found->second.type == type, ncclInvalidArgument,
                fmt::format("the reduction is of {}, the call of {}", name_of(found->second.type), name_of(type)));
        call.post.multiplied = true;
        call.post.factor = found->second.factor;
        call.factor_at = found->second.factor_at;
      }
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
    const std::string in_refusal = refusal(in, bytes_in(call.post, member.rank(), member.size()), member.device());
    require(in_refusal.empty(), ncclInvalidArgument, "the send buffer: " + in_refusal);
    const std::string out_refusal = refusal(out, bytes_out(call.post, member.rank(), member.size()), member.device());
    require(out_refusal.empty(), ncclInvalidArgument, "the receive buffer: " + out_refusal);
    if (group.depth == 0) {
      const int other = group.alone.try_emplace(member.communicator_id(), member.rank()).first->second;
      require(
          other == member.rank(), ncclInvalidUsage,
          fmt::format("this thread also calls for rank {}: such calls belong between ncclGroupStart and ncclGroupEnd",
                      other));
    }
    ncclGroupStart();
    group.calls.push_back({owner, call, found});
    group.announce(text_of(call.post));
    return end_group();
  });
}

// The caller's configuration, checked as in NCCL; that of the parent, or the default, if there is none. The programs
// may have been compiled with an older header, whose structure is shorter.
ncclConfig_t checked(const std::string& call, const ncclConfig_t* given, const std::shared_ptr<Member>& parent = {}) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  const auto magic = config.magic;
  if (given) {
    config.magic = 0;
    std::memcpy(&config, given, std::min(given->size, sizeof config));
    require(config.magic == magic, ncclInvalidArgument,
            call + ": the ncclConfig_t is not from NCCL_CONFIG_INITIALIZER");
  }
  const auto in_range = [&](const char* name, int value, int least, int most) {
    require(value == NCCL_CONFIG_UNDEF_INT || (value >= least && value <= most), ncclInvalidArgument,
            fmt::format("{}: Invalid config {} attribute value {}", call, name, value));
  };
  in_range("blocking", config.blocking, 0, 1);
  in_range("cgaClusterSize", config.cgaClusterSize, 0, INT_MAX);
  in_range("minCTAs", config.minCTAs, 1, config.maxCTAs == NCCL_CONFIG_UNDEF_INT ? INT_MAX : config.maxCTAs);
  in_range("maxCTAs", config.maxCTAs, 1, INT_MAX);
  in_range("splitShare", config.splitShare, 0, 1);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
  in_range("collnetEnable", config.collnetEnable, 0, 1);
  in_range("CTAPolicy", config.CTAPolicy, 0, 3);
  in_range("shrinkShare", config.shrinkShare, 0, 1);
  in_range("nvlsCTAs", config.nvlsCTAs, 1, INT_MAX);
#endif
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
  in_range("nChannelsPerNetPeer", config.nChannelsPerNetPeer, 1, 64);
  in_range("nvlinkCentricSched", config.nvlinkCentricSched, 0, 1);
#endif
  if (config.blocking == NCCL_CONFIG_UNDEF_INT) config.blocking = !given && parent ? parent->blocking() : 1;
  return config;
}

std::string text_of(const std::string& call, const ncclUniqueId& id) {
  const std::string text(id.internal, strnlen(id.internal, sizeof id.internal));
  require(text.starts_with(std::string(id_mark) + " "), ncclInvalidArgument,
          call +
              ": the unique id is not from ncclGetUniqueId of emulated-gpu: all ranks must have the same id and use "
              "emulated-gpu");
  return text;
}

ncclResult_t begin(ncclComm_t* comm, const std::shared_ptr<Member>& member, const std::string& call,
                   std::function<void()> job) {
  ncclGroupStart();
  group.starts.push_back({member, std::move(job), comm});
  group.announce(call);
  return end_group();
}

int current_device(const std::string& call) {
  int device = 0;
  require(cudaGetDevice(&device) == cudaSuccess, ncclUnhandledCudaError,
          call + ": " + cudaGetErrorString(cudaErrorNoDevice));
  return device;
}

// Sets *comm to a new communicator, which joins the hub of `id` when the group ends.
ncclResult_t initialize(const std::string& call, ncclComm_t* comm, int size, const ncclUniqueId& id, int rank,
                        const ncclConfig_t* config) {
  require(comm, ncclInvalidArgument, call + ": the output pointer is null");
  *comm = nullptr;
  const bool blocking = checked(call, config).blocking;
  require(size >= 1 && rank >= 0 && rank < size, ncclInvalidArgument,
          fmt::format("{}: rank {} of {} ranks", call, rank, size));
  const std::string text = text_of(call, id);
  const auto member = std::make_shared<Member>(call, rank, size, current_device(call), blocking);
  *comm = new_handle(member);
  return begin(comm, member, call, [=] { member->join(text, "init"); });
}

// Waits, inside a job of `parent`, until `child` has joined.
void join_from(const std::shared_ptr<Member>& parent, const std::shared_ptr<Member>& child,
               const std::string& session) {
  parent->set_child(child);
  try {
    child->join(parent->hub(), session);
  } catch (const NcclError&) {
    parent->set_child(nullptr);
    throw;
  }
  parent->set_child(nullptr);
}

void register_buffer(const std::string& call, ncclComm_t comm, void* memory, std::size_t bytes, void** handle) {
  const auto member = member_of(comm, call);
  member->require_ready(call);
  const std::string why = refusal(memory, bytes, member->device());
  require(why.empty(), ncclInvalidArgument, call + ": " + why);
  *handle = memory;
}

template <class Question>
ncclResult_t ask(const char* call, ncclComm_t comm, int* answer, Question&& question) {
  return guarded([&] {
    const auto member = member_of(comm, call);
    require(answer, ncclInvalidArgument, std::string(call) + ": the output pointer is null");
    member->require_ready(call);
    *answer = question(*member);
  });
}

struct AtExit {
  ~AtExit() {
    std::size_t left = 0;
    {
      const std::lock_guard lock(Handles::get().mutex);
      for (const ncclComm_t comm : Handles::get().all) left += comm->member ? 1 : 0;
    }
    if (left && checks()) say(fmt::format("leaked at exit: {} communicator{}", left, left > 1 ? "s" : ""));
    wait_for_guests();
  }
} at_exit;

}  // namespace

// Of refused.cpp.in.
ncclResult_t refuse_call(const char* name) {
  return guarded(
      [&] { require(false, ncclInvalidUsage, std::string(name) + ": emulated-gpu does not support this function"); });
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
    std::string error, text = "emulated-gpu without devices";  // like NCCL, fails later, when the GPU is needed
    require(id, ncclInvalidArgument, "ncclGetUniqueId: the output pointer is null");
    if (int devices = 0; cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
      const auto hub = Hub::make(error);
      require(hub != nullptr, ncclInvalidUsage, "ncclGetUniqueId: " + error);
      text = hub->id();
    }
    *id = {};
    text.copy(id->internal, sizeof id->internal - 1);
  });
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  return guarded([&] { return initialize("ncclCommInitRankConfig", comm, size, id, rank, config); });
}
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int size, ncclUniqueId id, int rank) {
  return guarded([&] { return initialize("ncclCommInitRank", comm, size, id, rank, nullptr); });
}
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int count, const int* devices) {
  const std::string call = "ncclCommInitAll";
  int before = 0, all = 0;
  cudaGetDevice(&before);
  cudaGetDeviceCount(&all);
  const ncclResult_t code = guarded([&] {
    require(comms && count >= 0, ncclInvalidArgument, call + ": no output pointer, or a negative number of devices");
    std::set<int> used;
    for (int i = 0; devices && i < count; ++i) {
      require(devices[i] >= 0 && devices[i] < all, ncclInvalidArgument,
              fmt::format("{}: Invalid device {} (there are {})", call, devices[i], all));
      require(used.insert(devices[i]).second, ncclInvalidUsage,
              fmt::format("{}: device {} is in the list twice", call, devices[i]));
    }
    ncclUniqueId id;
    if (const ncclResult_t made = ncclGetUniqueId(&id); made != ncclSuccess) throw NcclError{made, last_error};
    ncclGroupStart();
    for (int i = 0; i < count; ++i)
      guarded([&] {
        require(cudaSetDevice(devices ? devices[i] : i) == cudaSuccess, ncclUnhandledCudaError,
                fmt::format("{}: no device {}", call, i));
        return initialize(call, &comms[i], count, id, i, nullptr);
      });
    return end_group();
  });
  cudaSetDevice(before);
  return code;
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made, ncclConfig_t* config) {
  return guarded([&] {
    const std::string call = "ncclCommSplit";
    const auto parent = member_of(comm, call);
    require(made, ncclInvalidArgument, call + ": the output pointer is null");
    require(color >= 0 || color == NCCL_SPLIT_NOCOLOR, ncclInvalidArgument, fmt::format("{}: color {}", call, color));
    parent->require_ready(call);
    *made = nullptr;
    const bool blocking = checked(call, config, parent).blocking;
    return begin(made, parent, call, [=] {
      const std::array color_and_key = {color, key};
      const auto bytes = parent->exchange(Op::split, std::as_bytes(std::span(color_and_key)));
      const std::string session = fmt::format("{} color {}", parent->next_child(), color);
      if (color == NCCL_SPLIT_NOCOLOR) return;
      std::vector<std::pair<int, int>> ranks;  // key, rank of the parent
      for (int rank = 0; rank < parent->size(); ++rank) {
        std::array<int, 2> of_rank;
        std::memcpy(&of_rank, bytes.data() + static_cast<std::size_t>(rank) * sizeof of_rank, sizeof of_rank);
        if (of_rank[0] == color) ranks.emplace_back(of_rank[1], rank);
      }
      std::ranges::sort(ranks);
      const auto place = std::ranges::find(ranks, std::pair(key, parent->rank())) - ranks.begin();
      const auto child = std::make_shared<Member>(call, static_cast<int>(place), static_cast<int>(ranks.size()),
                                                  parent->device(), blocking);
      join_from(parent, child, session);
      *made = new_handle(child);
    });
  });
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
    const NcclError state = member_of(comm, "ncclCommGetAsyncError")->state();
    *error = state.code;
    if (!state.text.empty()) last_error = state.text;
  });
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return ncclSuccess;
    const char* call = "ncclCommFinalize";
    const auto member = member_of(comm, call);
    member->require_usable(call);
    return member->run([member, call] { member->finalize(call); });
  });
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return;
    const char* call = "ncclCommDestroy";
    const auto member = member_of(comm, call);
    try {
      member->finalize(call);
    } catch (const NcclError&) {  // it was aborted
    }
    retire(comm, call);
    member->destroy();
  });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return guarded([&] {
    if (!comm) return;
    const auto member = member_of(comm, "ncclCommAbort");
    if (const char* debug = std::getenv("NCCL_DEBUG"); debug && std::string(debug) == "INFO")
      say(fmt::format("ncclCommAbort on rank {}", member->rank()));
    retire(comm, "ncclCommAbort");
    member->abort();
  });
}

// Buffers and reductions

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
  void** handle = reinterpret_cast<void**>(window);
  return guarded([&] { register_buffer("ncclCommWindowRegister", comm, memory, bytes, handle); });
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t) {
  return guarded([&] { member_of(comm, "ncclCommWindowDeregister"); });
}
#endif
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm) {
  return guarded([&] {
    const auto member = member_of(comm, "ncclRedOpCreatePreMulSum");
    member->require_ready("ncclRedOpCreatePreMulSum");
    require(op && scalar && size_of(type) > 0, ncclInvalidArgument,
            "ncclRedOpCreatePreMulSum: a null pointer, or no such type");
    Member::Operator made{type, 0, residence == ncclScalarDevice ? scalar : nullptr};
    if (!made.factor_at) std::memcpy(&made.factor, scalar, size_of(type));
    const std::lock_guard lock(member->operators_mutex);
    *op = static_cast<ncclRedOp_t>(member->next_operator++);
    member->operators.emplace(*op, made);
  });
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return guarded([&] {
    const auto member = member_of(comm, "ncclRedOpDestroy");
    const std::lock_guard lock(member->operators_mutex);
    require(member->operators.erase(op), ncclInvalidArgument, "ncclRedOpDestroy: no such reduction");
  });
}

// Operations

ncclResult_t ncclGroupStart() {
  ++group.depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return guarded([] { return end_group(); });
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return put(Op::all_reduce, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return put(Op::reduce, in, out, count, type, op, root, comm, stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return put(Op::reduce_scatter, in, out, count, type, op, 0, comm, stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return put(Op::all_gather, in, out, count, type, 0, 0, comm, stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return put(Op::broadcast, in, out, count, type, 0, root, comm, stream);
}
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
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
ncclResult_t ncclAlltoAll(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  return put(Op::all_to_all, in, out, count, type, 0, 0, comm, stream);
}
ncclResult_t ncclGather(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  return put(Op::gather, in, out, count, type, 0, root, comm, stream);
}
ncclResult_t ncclScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  return put(Op::scatter, in, out, count, type, 0, root, comm, stream);
}
#endif

}  // extern "C"
