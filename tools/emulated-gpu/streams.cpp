// Streams, events and graphs.
#include "runtime.hpp"

#include <fmt/format.h>

#include <algorithm>

using namespace emulated_gpu;

namespace emulated_gpu {

CUstream_st* find(cudaStream_t stream, int device) {
  std::set<cudaStream_t>& streams = the<Machine>().streams;
  if (stream != nullptr && stream != cudaStreamLegacy) return streams.count(stream) ? stream : nullptr;
  for (const cudaStream_t one : streams)
    if (one->is_default && one->device == device) return one;
  return *streams.insert(new CUstream_st{.device = device, .blocking = true, .is_default = true}).first;
}
CUstream_st& valid(cudaStream_t stream) {
  if (stream == cudaStreamPerThread) refuse(cudaErrorNotSupported, "cudaStreamPerThread is not emulated");
  CUstream_st* const found = find(stream);
  if (!found) refuse(cudaErrorInvalidResourceHandle, "this stream was destroyed or never created");
  return *found;
}

thread_local Trace* current_task = nullptr;
namespace {

// Finds races between streams among the last tasks. A task is behind another one if events or the rules of the default
// stream order them, or if it was submitted after the other one's end, which the host may have seen.
struct Races {
  std::mutex mutex;
  std::atomic<std::uint64_t> now{0};
  std::deque<std::shared_ptr<Trace>> last{};
  std::set<std::pair<std::string, std::string>> reported{};

  void add(const std::shared_ptr<Trace>& task) {
    const Lock lock(mutex);
    task->done = ++now;
    if (task->what.empty() || task->used.signals) return;
    for (auto& ranges : task->used.ranges) {
      std::ranges::sort(ranges, {}, &ptx::Range::begin);
      std::size_t n = 0;
      for (const ptx::Range& one : ranges)
        if (n && one.begin <= ranges[n - 1].end)
          ranges[n - 1].end = std::max(ranges[n - 1].end, one.end);
        else if (n < 1 << 14)
          ranges[n++] = one;
      ranges.resize(n);
    }
    for (const auto& other : last) report_race(*task, *other);
    last.push_back(task);
    if (last.size() > 256) last.pop_front();
  }
  void report_race(const Trace& task, const Trace& other) {
    const auto is_behind = [](const Trace& one, const Point& of) {
      const auto known = one.point.before.find(of.queue.get());
      return known != one.point.before.end() && known->second >= of.number;
    };
    if (other.done < task.submitted || is_behind(task, other.point) || is_behind(other, task.point)) return;
    static constexpr const char* does[] = {"reads", "writes", "changes with an atomic function"};
    for (int one = 0; one < 3; ++one)
      for (int two = 0; two < 3; ++two)
        if ((one != two || one == 1) && meet(task.used.ranges[one], other.used.ranges[two]) &&
            reported.insert({task.what, other.what}).second)
          report(
              fmt::format("race between streams: {}{} {} what {}{} on another stream {}; no event or wait orders them",
                          task.what, place_of(task.by), does[one], other.what, place_of(other.by), does[two]));
  }
  static bool meet(const std::vector<ptx::Range>& one, const std::vector<ptx::Range>& two) {
    for (auto i = one.begin(), k = two.begin(); i != one.end() && k != two.end(); i->end < k->end ? ++i : ++k)
      if (i->begin < k->end && k->begin < i->end) return true;
    return false;
  }
};

// The next tasks of the stream are behind the point.
void put_behind(CUstream_st* stream, const Point& point) {
  for (const auto& [queue, number] : point.before) stream->behind[queue] = std::max(stream->behind[queue], number);
}

}  // namespace

void touch(const void* data, std::size_t bytes, Touch how, const std::string& what) {
  if (!current_task || bytes == 0) return;
  current_task->used.add(static_cast<int>(how), reinterpret_cast<std::uintptr_t>(data), bytes);
  current_task->what = what;
}

Point submit(CUstream_st* stream, Task task, bool late) {
  std::vector<Point> before;
  for (const cudaStream_t other : the<Machine>().streams)
    if (other != stream && other->device == stream->device && other->blocking && stream->blocking &&
        (other->is_default || stream->is_default))
      before.push_back(other->end());
  std::erase_if(before, [](const Point& point) { return point.reached(); });
  if (checks()) {
    if (stream->end().reached()) stream->behind.clear();
    for (const Point& one : before) put_behind(stream, one);
    stream->behind[stream->queue.get()] = stream->queue->submitted() + 1;
  }
  Point point = stream->end();
  ++point.number;
  const auto trace = checks() ? std::make_shared<Trace>(Trace{point, ++the<Races>().now, frames()}) : nullptr;
  const auto whole = [before, trace, task = std::move(task)] {
    for (const Point& one : before) one.wait();
    current_task = trace.get();
    task();
    current_task = nullptr;
    if (trace) the<Races>().add(trace);
  };
  stream->queue->put(whole, late);
  return point;
}

std::optional<Point> put(cudaStream_t stream, const Make& make) {
  const Lock lock(the<Machine>().mutex);
  CUstream_st& found = valid(stream);
  if (!found.capture) return submit(&found, make());
  found.capture->tasks.push_back(make);
  ++found.before[&found];
  return std::nullopt;
}

Point end_of(cudaStream_t stream) {
  const Lock lock(the<Machine>().mutex);
  const CUstream_st& found = valid(stream);
  if (found.capture) refuse(cudaErrorStreamCaptureUnsupported, "this stream is being captured");
  return found.end();
}

void start_late_work() {
  if (!checks()) return;
  const Lock lock(the<Machine>().mutex);
  for (const cudaStream_t stream : the<Machine>().streams) stream->end().wait(std::chrono::seconds(0));
}

void wait_for_device(int device, std::chrono::seconds most) {
  std::vector<Point> ends;
  {
    Machine& machine = the<Machine>();
    const Lock lock(machine.mutex);
    for (const cudaStream_t stream : machine.streams)
      if (stream->device == device) ends.push_back(stream->end());
    for (const auto& [of_device, end] : machine.destroyed)
      if (of_device == device) ends.push_back(end);
  }
  for (const Point& end : ends) end.wait(most);
}

}  // namespace emulated_gpu

namespace {

CUevent_st& valid(cudaEvent_t event) {
  if (!the<Machine>().events.count(event))
    refuse(cudaErrorInvalidResourceHandle, "this event was destroyed or never created");
  return *event;
}
// The event's last record; null if there is none.
std::shared_ptr<Record> record_of(cudaEvent_t event) {
  if (valid(event).captured) refuse(cudaErrorCapturedEvent, "this event was last recorded in a capture, not executed");
  return event->record;
}

// A program's function on a stream's thread. It must not use CUDA.
void put_host(cudaStream_t stream, bool given, const Task& function) {
  if (!given) refuse(cudaErrorInvalidValue, "the function is null");
  put(stream, [=] {
    return [=] {
      in_host_function = true;
      function();
      in_host_function = false;
    };
  });
}

bool done(const std::shared_ptr<Record>& record) { return !record || record->point.wait(std::chrono::seconds(0)); }

CUgraph_st& valid(cudaGraph_t graph) {
  if (!the<Machine>().graphs.count(graph)) refuse(cudaErrorInvalidValue, "this graph was destroyed or never created");
  return *graph;
}
template <class T>
cudaError_t destroy(const char* name, std::set<T*> Machine::*all, T* graph) {
  return locked(name, [&](Machine& machine) {
    if ((machine.*all).erase(graph) == 0) refuse(cudaErrorInvalidValue, "this graph was destroyed or never created");
    delete graph;
  });
}

}  // namespace

extern "C" {

// Streams

// Priorities have no effect here.
constexpr int highest_priority = -5;
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  return guarded(__func__, [&] {
    if (least) *least = 0;
    if (greatest) *greatest = highest_priority;
  });
}
cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  return locked(__func__, [&](Machine&) { *priority = valid(stream).priority; });
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return locked(__func__, [&](Machine& machine) {
    auto made = std::make_unique<CUstream_st>();
    made->device = current_device;
    made->blocking = !(flags & cudaStreamNonBlocking);
    made->priority = std::clamp(priority, highest_priority, 0);
    machine.streams.insert(*stream = made.release());
  });
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithFlags(stream, cudaStreamDefault); }
cudaError_t cudaStreamAttachMemAsync(cudaStream_t stream, void*, std::size_t, unsigned) {
  return locked(__func__, [&](Machine&) { valid(stream); });
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return locked(__func__, [&](Machine& machine) {
    if (valid(stream).is_default) refuse(cudaErrorInvalidResourceHandle, "the default stream cannot be destroyed");
    machine.streams.erase(stream);
    stream->queue->close();
    std::erase_if(machine.destroyed, [](const auto& one) { return one.second.reached(); });
    machine.destroyed.push_back({stream->device, stream->end()});
    delete stream;
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return guarded(__func__,
                 [&] { return end_of(stream).wait(std::chrono::seconds(0)) ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return guarded(__func__, [&] {
    end_of(stream).wait();
    require_success_of_all();
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return locked(__func__, [&](Machine&) {
    valid(event);
    CUstream_st& found = valid(stream);
    if (event->captured) {
      const auto capture = event->capture.lock();
      if (!capture) refuse(cudaErrorCapturedEvent, "the capture that this event is a part of has ended");
      if (found.is_default) refuse(cudaErrorStreamCaptureImplicit, "the default stream cannot be captured");
      if (found.capture && found.capture != capture) {
        found.capture->invalid = capture->invalid = true;
        refuse(cudaErrorStreamCaptureMerge, "this stream and the event are parts of two captures");
      }
      found.capture = capture;
      for (const auto& [one, tasks] : event->before) found.before[one] = std::max(found.before[one], tasks);
    } else if (found.capture) {
      refuse(cudaErrorStreamCaptureIsolation, "this stream is being captured, and the event is outside");
    } else if (const auto record = event->record) {  // as in CUDA: without one the event counts as complete
      submit(&found, [record] { record->point.wait(); });
      put_behind(&found, record->point);
    }
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return guarded(__func__, [&] { put_host(stream, function, [=] { function(data); }); });
}
cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  return guarded(__func__, [&] { put_host(stream, function, [=] { function(stream, cudaSuccess, data); }); });
}

// Events

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
  return locked(__func__, [&](Machine& machine) {
    auto made = std::make_unique<CUevent_st>();
    made->device = current_device;
    made->timed = !(flags & cudaEventDisableTiming);
    machine.events.insert(*event = made.release());
  });
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return locked(__func__, [&](Machine& machine) {
    valid(event);
    machine.events.erase(event);
    delete event;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return locked(__func__, [&](Machine&) {
    valid(event);
    CUstream_st& found = valid(stream);
    if (found.device != event->device)
      refuse(cudaErrorInvalidResourceHandle,
             fmt::format("the event is of device {}, the stream of device {}", event->device, found.device));
    event->captured = found.capture != nullptr;
    event->capture = found.capture;
    event->before = found.before;
    if (event->captured) return;
    auto record = std::make_shared<Record>();
    record->point = submit(&found, [record] { record->time = Clock::now(); });
    event->record = std::move(record);
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return locked(__func__, [&](Machine&) { return done(record_of(event)) ? cudaSuccess : cudaErrorNotReady; });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  std::shared_ptr<Record> record;
  const cudaError_t code = locked(__func__, [&](Machine&) { record = record_of(event); });
  if (record) record->point.wait();
  return code;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return locked(__func__, [&](Machine&) {
    const auto from = record_of(start), to = record_of(end);
    if (!from || !to || !start->timed || !end->timed)
      refuse(cudaErrorInvalidResourceHandle, "the event was not recorded, or has no timing");
    if (!done(from) || !done(to)) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(to->time - from->time).count();
    return cudaSuccess;
  });
}

// Graphs: recorded tasks, to be launched again

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return locked(__func__, [&](Machine&) {
    CUstream_st* const found = &valid(stream);
    if (found->is_default) refuse(cudaErrorStreamCaptureUnsupported, "the default stream cannot be captured");
    if (found->capture) refuse(cudaErrorIllegalState, "this stream is being captured");
    found->capture = std::make_shared<Capture>(Capture{std::this_thread::get_id(), found});
  });
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  return locked(__func__, [&](Machine& machine) {
    CUstream_st& found = valid(stream);
    *graph = nullptr;
    if (!found.capture) refuse(cudaErrorIllegalState, "this stream is not captured");
    if (found.capture->thread != std::this_thread::get_id())
      refuse(cudaErrorStreamCaptureWrongThread, "another thread began the capture");
    if (found.capture->origin != &found) refuse(cudaErrorStreamCaptureUnmatched, "the capture began on another stream");
    const std::shared_ptr<Capture> ended = found.capture;
    Before joined = found.before;
    bool all = true;
    for (const cudaStream_t one : machine.streams) {
      if (one->capture != ended) continue;
      all = all && joined[one] >= one->before[one];
      one->capture = nullptr;
      one->before.clear();
    }
    if (ended->invalid) refuse(cudaErrorStreamCaptureInvalidated, "a call of this capture was refused");
    if (!all) refuse(cudaErrorStreamCaptureUnjoined, "no event joins the last work of another stream");
    machine.graphs.insert(*graph = new CUgraph_st{ended->tasks});
  });
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long) {
  return locked(__func__,
                [&](Machine& machine) { machine.executables.insert(*executable = new CUgraphExec_st{valid(graph)}); });
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
  return cudaGraphInstantiate(executable, graph, flags);
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) { return destroy(__func__, &Machine::graphs, graph); }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return destroy(__func__, &Machine::executables, executable);
}
cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return hint(__func__); }
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return locked(__func__, [&](Machine& machine) {
    CUstream_st& found = valid(stream);
    if (!machine.executables.count(executable)) throw CudaError{cudaErrorInvalidResourceHandle};
    for (const Make& make : executable->tasks) submit(&found, make());
  });
}

}  // extern "C"
