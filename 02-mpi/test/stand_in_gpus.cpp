// A stand-in of CUDA's runtime and of NCCL, for tests on machines without a GPU: STAND_IN_GPUS GPUs (4) of one process,
// whose memory is the host's. Streams are queues that go on when somebody asks about them. A call of NCCL is done when
// it is at the head of the queue on every rank. It shows that our calls fit together, and nothing of NCCL itself.
//
// STAND_IN_STUCK=N: after N collectives no more is done. STAND_IN_ERROR=N: the communicators fail after N questions.
// What is not given back is said on standard error at the end.
#include <multinode/data_type.hpp>

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <iostream>
#include <map>
#include <mutex>
#include <vector>

using multinode::DataType;

namespace {
struct Clique;
struct Call;
}  // namespace

// CUDA's and NCCL's names of what their handles point to.
struct CUevent_st {
  int device = 0;
  bool done = false;
  std::chrono::steady_clock::time_point time{};
};
struct CUstream_st {
  int device = 0;
  std::deque<Call> queue;
  bool capturing = false;
  std::vector<Call> captured;
};
struct CUgraph_st {
  std::vector<Call> calls;
};
struct CUgraphExec_st {
  std::vector<Call> calls;
};
struct ncclComm {
  Clique* clique;
  int rank, device;
  std::map<int, double> factors;  // of ncclRedOpCreatePreMulSum
};

namespace {

struct Clique {
  int size;
  std::map<int, ncclComm*> ranks;
};

struct Transfer {
  bool sends;
  char* data;
  std::size_t bytes;
  int peer;
};

struct Call {
  enum Kind { event, copy, all_reduce, reduce, reduce_scatter, all_gather, broadcast, transfers } kind{};
  const char* in = nullptr;
  char* out = nullptr;
  std::size_t count = 0;  // copy: bytes
  DataType type{};
  ncclRedOp_t op{};
  int root = 0;
  double factor = 1;
  ncclComm* comm = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t mark = nullptr;
  std::vector<Transfer> parts;

  std::size_t bytes() const { return count * multinode::size_of(type); }
};

int setting(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  return text ? std::atoi(text) : otherwise;
}

[[noreturn]] void wrong(const char* what) {
  std::cerr << "stand-in: " << what << std::endl;
  std::abort();
}

struct Machine {
  std::recursive_mutex mutex;
  std::map<std::string, Clique> cliques;
  std::vector<cudaStream_t> streams;
  std::map<int, CUstream_st> default_streams;
  std::map<std::string, int> left;  // by kind: made and not yet given back
  int collectives = 0, questions = 0;

  ~Machine() {
    for (const auto& [what, count] : left)
      if (count != 0) std::cerr << "stand-in: left behind: " << count << " " << what << '\n';
  }
  void put(const Call& call) {
    (call.stream->capturing ? call.stream->captured.push_back(call) : call.stream->queue.push_back(call));
  }
  void go_on();
};

Machine& machine() {
  static Machine machine;
  return machine;
}
using Lock = std::lock_guard<std::recursive_mutex>;

thread_local int current_device = 0;
thread_local int group_depth = 0;
thread_local std::vector<Call> group;
thread_local ncclComm_t alone = nullptr;  // for which this thread called outside a group

cudaStream_t stream_of(cudaStream_t stream, int device = current_device) {
  if (stream) return stream;
  const auto [found, is_new] = machine().default_streams.try_emplace(device, CUstream_st{device, {}, false, {}});
  if (is_new) machine().streams.push_back(&found->second);
  return &found->second;
}

DataType type_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
      return DataType::int8;
    case ncclUint8:
      return DataType::uint8;
    case ncclInt32:
      return DataType::int32;
    case ncclUint32:
      return DataType::uint32;
    case ncclInt64:
      return DataType::int64;
    case ncclUint64:
      return DataType::uint64;
    case ncclFloat16:
      return DataType::float16;
    case ncclFloat32:
      return DataType::float32;
    case ncclFloat64:
      return DataType::float64;
    case ncclBfloat16:
      return DataType::bfloat16;
    default:
      wrong("an unknown type");
  }
}

multinode::Reduction reduction_of(ncclRedOp_t op) {
  return op == ncclProd  ? multinode::Reduction::product
         : op == ncclMax ? multinode::Reduction::max
         : op == ncclMin ? multinode::Reduction::min
                         : multinode::Reduction::sum;
}

// Of all ranks' inputs, `count` elements each.
std::vector<char> reduced(const std::vector<Call>& calls, std::size_t count) {
  const DataType type = calls[0].type;
  std::vector<char> sum;
  for (const Call& call : calls) {
    std::vector<char> own(call.in, call.in + count * multinode::size_of(type));
    if (call.factor != 1)
      multinode::with_type(type, [&]<class T>(T) {
        T* element = reinterpret_cast<T*>(own.data());
        for (std::size_t i = 0; i < count; ++i)
          element[i] = static_cast<T>(static_cast<double>(element[i]) * call.factor);
      });
    if (sum.empty())
      sum = own;
    else
      multinode::combine(type, reduction_of(call.op), sum.data(), sum.data(), own.data(), count);
  }
  if (calls[0].op == ncclAvg)
    multinode::with_type(type, [&]<class T>(T) {
      T* element = reinterpret_cast<T*>(sum.data());
      for (std::size_t i = 0; i < count; ++i)
        element[i] = static_cast<T>(element[i] / static_cast<T>(static_cast<float>(calls.size())));
    });
  return sum;
}

void transfer(const std::vector<Call>& calls) {
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> sent;  // from, to
  for (int rank = 0; const Call& call : calls) {
    for (const Transfer& part : call.parts)
      if (part.sends) sent[{rank, part.peer}].emplace_back(part.data, part.data + part.bytes);
    ++rank;
  }
  for (int rank = 0; const Call& call : calls) {
    for (const Transfer& part : call.parts) {
      if (part.sends) continue;
      auto& waiting = sent[{part.peer, rank}];
      if (waiting.empty() || waiting.front().size() != part.bytes) wrong("a receive without its send");
      std::ranges::copy(waiting.front(), part.data);
      waiting.pop_front();
    }
    ++rank;
  }
  for (const auto& [ranks, waiting] : sent)
    if (!waiting.empty()) wrong("a send without its receive");
}

// The same call of all ranks, in order of rank.
void perform(const std::vector<Call>& calls) {
  const Call& first = calls[0];
  for (const Call& call : calls)
    if (call.kind != first.kind || call.count != first.count || call.type != first.type || call.root != first.root)
      wrong("ranks call different things");
  const auto root = static_cast<std::size_t>(first.root);
  switch (first.kind) {
    case Call::all_reduce:
      for (const std::vector<char> sum = reduced(calls, first.count); const Call& call : calls)
        std::ranges::copy(sum, call.out);
      break;
    case Call::reduce:
      std::ranges::copy(reduced(calls, first.count), calls[root].out);
      break;
    case Call::reduce_scatter: {
      const std::vector<char> sum = reduced(calls, first.count * calls.size());
      for (std::size_t rank = 0; rank < calls.size(); ++rank)
        std::memcpy(calls[rank].out, sum.data() + rank * first.bytes(), first.bytes());
      break;
    }
    case Call::all_gather: {
      std::vector<char> all;
      for (const Call& call : calls) all.insert(all.end(), call.in, call.in + call.bytes());
      for (const Call& call : calls) std::ranges::copy(all, call.out);
      break;
    }
    case Call::broadcast:
      for (const std::vector<char> block(calls[root].in, calls[root].in + first.bytes()); const Call& call : calls)
        std::ranges::copy(block, call.out);
      break;
    case Call::transfers:
      transfer(calls);
      break;
    case Call::event:
    case Call::copy:
      wrong("not a collective");
  }
}

void Machine::go_on() {
  for (bool more = true; more;) {
    more = false;
    for (const cudaStream_t stream : streams)
      for (auto& queue = stream->queue; !queue.empty() && queue.front().comm == nullptr; queue.pop_front()) {
        const Call& call = queue.front();
        if (call.kind == Call::copy) {
          std::memmove(call.out, call.in, call.count);
        } else {
          call.mark->done = true;
          call.mark->time = std::chrono::steady_clock::now();
        }
        more = true;
      }
    for (auto& [id, clique] : cliques) {
      if (collectives >= setting("STAND_IN_STUCK", INT_MAX)) return;
      std::vector<cudaStream_t> heads;
      for (const auto& [rank, comm] : clique.ranks)
        for (const cudaStream_t stream : streams)
          if (!stream->queue.empty() && stream->queue.front().comm == comm) {
            heads.push_back(stream);
            break;
          }
      if (clique.size == 0 || heads.size() != static_cast<std::size_t>(clique.size)) continue;
      std::vector<Call> calls;
      for (const cudaStream_t stream : heads) {
        calls.push_back(stream->queue.front());
        stream->queue.pop_front();
      }
      perform(calls);
      ++collectives;
      more = true;
    }
  }
}

ncclResult_t enqueue(Call call, cudaStream_t stream) {
  const Lock lock(machine().mutex);
  call.stream = stream_of(stream, call.comm->device);
  if (call.stream->device != call.comm->device) wrong("a stream of another GPU");
  if (call.op >= ncclNumOps) call.factor = call.comm->factors.at(call.op);
  if (group_depth == 0 && alone && alone != call.comm) wrong("one thread calls for several GPUs, not in a group");
  if (group_depth == 0) alone = call.comm;
  ncclGroupStart();
  group.push_back(std::move(call));
  return ncclGroupEnd();
}

Call call_of(Call::Kind kind, const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
             int root, ncclComm_t comm) {
  Call call;
  call.kind = kind;
  call.in = static_cast<const char*>(in);
  call.out = static_cast<char*>(out);
  call.count = count;
  call.type = type_of(type);
  call.op = op;
  call.root = root;
  call.comm = comm;
  return call;
}

ncclResult_t transfer(bool sends, void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  Call call = call_of(Call::transfers, nullptr, nullptr, 0, type, ncclSum, 0, comm);
  call.parts.push_back({sends, static_cast<char*>(data), count * multinode::size_of(call.type), peer});
  return enqueue(std::move(call), stream);
}

template <class Function>
auto locked(Function&& function) {
  const Lock lock(machine().mutex);
  return function(machine());
}

cudaError_t count(const char* what, int by) {
  return locked([&](Machine& m) {
    m.left[what] += by;
    return cudaSuccess;
  });
}

char* block(const void* buffer, std::size_t count, ncclDataType_t type, int number) {
  return static_cast<char*>(const_cast<void*>(buffer)) +
         static_cast<std::size_t>(number) * count * multinode::size_of(type_of(type));
}

}  // namespace

extern "C" {

// CUDA's runtime

cudaError_t cudaGetDeviceCount(int* count) {
  *count = setting("STAND_IN_GPUS", 4);
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= setting("STAND_IN_GPUS", 4)) return cudaErrorInvalidDevice;
  current_device = device;
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorName(cudaError_t) { return "cudaError"; }
const char* cudaGetErrorString(cudaError_t) { return "an error of the stand-in"; }
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) { return cudaRuntimeGetVersion(version); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "stand-in");
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *free = *total = std::size_t{1} << 30;
  return cudaSuccess;
}
cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  *memory = std::malloc(bytes);
  return count("buffers", 1);
}
cudaError_t cudaFree(void* memory) {
  std::free(memory);
  return memory ? count("buffers", -1) : cudaSuccess;
}
cudaError_t cudaMemset(void* memory, int value, std::size_t bytes) {
  std::memset(memory, value, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t) {
  return cudaMemset(memory, value, bytes);
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind) {
  std::memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return locked([&](Machine& m) {
    Call call;
    call.kind = Call::copy;
    call.in = static_cast<const char*>(from);
    call.out = static_cast<char*>(to);
    call.count = bytes;
    call.stream = stream_of(stream);
    m.put(call);
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return locked([&](Machine& m) {
    m.streams.push_back(*stream = new CUstream_st{current_device, {}, false, {}});
    return count("streams", 1);
  });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return locked([&](Machine& m) {
    std::erase(m.streams, stream);
    delete stream;
    return count("streams", -1);
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return locked([&](Machine& m) {
    m.go_on();
    return stream_of(stream)->queue.empty() ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  while (cudaStreamQuery(stream) == cudaErrorNotReady) {
  }
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
cudaError_t cudaEventCreate(cudaEvent_t* event) {
  *event = new CUevent_st{current_device};
  return count("events", 1);
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) { return cudaEventCreate(event); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return count("events", -1);
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return locked([&](Machine& m) {
    Call call;
    call.kind = Call::event;
    call.mark = event;
    call.stream = stream_of(stream);
    if (call.stream->device != event->device) return cudaErrorInvalidResourceHandle;
    event->done = false;
    m.put(call);
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return locked([&](Machine& m) {
    m.go_on();
    return event->done ? cudaSuccess : cudaErrorNotReady;
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return locked([&](Machine&) {
    if (!start->done || !end->done) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(end->time - start->time).count();
    if (*milliseconds < 0) wrong("events out of order");
    return cudaSuccess;
  });
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return locked([&](Machine&) {
    if (!stream) return cudaErrorStreamCaptureUnsupported;
    stream->capturing = true;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return locked([&](Machine&) {
    *graph = new CUgraph_st{std::move(stream->captured)};
    stream->captured.clear();
    stream->capturing = false;
    return count("graphs", 1);
  });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  *executable = new CUgraphExec_st{graph->calls};
  return count("executable graphs", 1);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return count("graphs", -1);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  delete executable;
  return count("executable graphs", -1);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t) {
  return locked([&](Machine& m) {
    for (const Call& call : executable->calls) m.put(call);
    return cudaSuccess;
  });
}

// NCCL

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t) { return "an error of the stand-in"; }
const char* ncclGetLastError(ncclComm_t) { return ""; }
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::strcpy(id->internal, "stand-in");
  return ncclSuccess;
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank, ncclConfig_t*) {
  return locked([&](Machine& m) {
    Clique& clique = m.cliques.try_emplace(id.internal, Clique{size, {}}).first->second;
    for (const auto& [other, known] : clique.ranks)
      if (known->device == current_device) return ncclInvalidUsage;  // one rank a GPU
    clique.ranks[rank] = *comm = new ncclComm{&clique, rank, current_device, {}};
    count("communicators", 1);
    return ncclSuccess;
  });
}
ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return locked([&](Machine& m) {
    m.go_on();
    comm->clique->ranks.erase(comm->rank);
    --comm->clique->size;
    delete comm;
    count("communicators", -1);
    return ncclSuccess;
  });
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  std::cerr << "stand-in: rank " + std::to_string(comm->rank) + " is aborted\n";
  return ncclCommDestroy(comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return locked([&](Machine& m) {
    const bool fails = comm->rank >= 0 && ++m.questions > setting("STAND_IN_ERROR", INT_MAX);
    *error = fails ? ncclRemoteError : ncclSuccess;
    return ncclSuccess;
  });
}
ncclResult_t ncclMemAlloc(void** memory, std::size_t bytes) {
  cudaMalloc(memory, bytes);
  return ncclSuccess;
}
ncclResult_t ncclMemFree(void* memory) {
  cudaFree(memory);
  return ncclSuccess;
}
ncclResult_t ncclCommRegister(const ncclComm_t, void* memory, std::size_t, void** handle) {
  *handle = memory;
  count("registered buffers", 1);
  return ncclSuccess;
}
ncclResult_t ncclCommDeregister(const ncclComm_t, void*) {
  count("registered buffers", -1);
  return ncclSuccess;
}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0)
ncclResult_t ncclCommWindowRegister(ncclComm_t, void* memory, std::size_t, ncclWindow_t* window, int) {
  *window = static_cast<ncclWindow_t>(memory);
  count("windows", 1);
  return ncclSuccess;
}
ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) {
  count("windows", -1);
  return ncclSuccess;
}
#endif
ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type, ncclScalarResidence_t,
                                      ncclComm_t comm) {
  return locked([&](Machine&) {
    *op = static_cast<ncclRedOp_t>(ncclNumOps + static_cast<int>(comm->factors.size()));
    multinode::with_type(type_of(type), [&](auto factor) {
      std::memcpy(&factor, scalar, sizeof factor);
      comm->factors[*op] = static_cast<double>(factor);
    });
    count("reductions", 1);
    return ncclSuccess;
  });
}
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm) {
  return locked([&](Machine&) {
    comm->factors.erase(op);
    count("reductions", -1);
    return ncclSuccess;
  });
}

ncclResult_t ncclGroupStart() {
  ++group_depth;
  return ncclSuccess;
}
// Sends and receives of one rank in a group are one call.
ncclResult_t ncclGroupEnd() {
  if (group_depth <= 0) return ncclInvalidUsage;
  if (--group_depth > 0) return ncclSuccess;
  return locked([&](Machine& m) {
    std::vector<Call> calls;
    for (Call& call : group) {
      const auto same = std::ranges::find_if(calls, [&](const Call& other) {
        return other.kind == Call::transfers && call.kind == Call::transfers && other.comm == call.comm;
      });
      if (same == calls.end())
        calls.push_back(std::move(call));
      else
        same->parts.push_back(call.parts[0]);
    }
    group.clear();
    for (const Call& call : calls) m.put(call);
    return ncclSuccess;
  });
}

ncclResult_t ncclAllReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return enqueue(call_of(Call::all_reduce, in, out, count, type, op, 0, comm), stream);
}
ncclResult_t ncclReduce(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op, int root,
                        ncclComm_t comm, cudaStream_t stream) {
  return enqueue(call_of(Call::reduce, in, out, count, type, op, root, comm), stream);
}
ncclResult_t ncclReduceScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                               ncclComm_t comm, cudaStream_t stream) {
  return enqueue(call_of(Call::reduce_scatter, in, out, count, type, op, 0, comm), stream);
}
ncclResult_t ncclAllGather(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue(call_of(Call::all_gather, in, out, count, type, ncclSum, 0, comm), stream);
}
ncclResult_t ncclBroadcast(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  return enqueue(call_of(Call::broadcast, in, out, count, type, ncclSum, root, comm), stream);
}
ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(true, const_cast<void*>(data), count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(false, data, count, type, peer, comm, stream);
}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 3)
ncclResult_t ncclAlltoAll(const void* in, void* out, std::size_t count, ncclDataType_t type, ncclComm_t comm,
                          cudaStream_t stream) {
  ncclGroupStart();
  for (int peer = 0; peer < comm->clique->size; ++peer) {
    ncclSend(block(in, count, type, peer), count, type, peer, comm, stream);
    ncclRecv(block(out, count, type, peer), count, type, peer, comm, stream);
  }
  return ncclGroupEnd();
}
ncclResult_t ncclGather(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                        cudaStream_t stream) {
  ncclGroupStart();
  ncclSend(in, count, type, root, comm, stream);
  for (int peer = 0; peer < comm->clique->size && comm->rank == root; ++peer)
    ncclRecv(block(out, count, type, peer), count, type, peer, comm, stream);
  return ncclGroupEnd();
}
ncclResult_t ncclScatter(const void* in, void* out, std::size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                         cudaStream_t stream) {
  ncclGroupStart();
  for (int peer = 0; peer < comm->clique->size && comm->rank == root; ++peer)
    ncclSend(block(in, count, type, peer), count, type, peer, comm, stream);
  ncclRecv(out, count, type, root, comm, stream);
  return ncclGroupEnd();
}
#endif

}  // extern "C"
