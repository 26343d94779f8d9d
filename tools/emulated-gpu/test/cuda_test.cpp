// The emulated CUDA runtime: ordering, copy kinds and lifetimes as in CUDA.
#include "cuda.hpp"

#include <atomic>
#include <future>
#include <thread>

namespace cuda_test {

using HostCuda = CudaTest;

// Blocks a stream until it is opened.
class Gate {
 public:
  explicit Gate(cudaStream_t stream) {
    EXPECT_OK(cudaLaunchHostFunc(
        stream, [](void* gate) { static_cast<Gate*>(gate)->opened_.get_future().wait(); }, this));
  }
  void open() { opened_.set_value(); }

 private:
  std::promise<void> opened_;
};

TEST_F(HostCuda, HasTheRequestedDevices) {
  ASSERT_EQ(four_devices, 0);
  int count = 0, device = -1;
  EXPECT_OK(cudaGetDeviceCount(&count));
  EXPECT_EQ(count, 4);
  EXPECT_OK(cudaSetDevice(3));
  EXPECT_OK(cudaGetDevice(&device));
  EXPECT_EQ(device, 3);
  expect_refused(cudaSetDevice(4), cudaErrorInvalidDevice, "no device 4: there are 4");
  EXPECT_OK(cudaSetDevice(0));
}

TEST_F(HostCuda, MemoryIsFreedOnceAndHasAnEnd) {
  void* memory = nullptr;
  EXPECT_OK(cudaMalloc(&memory, 1000));
  EXPECT_OK(cudaFree(memory));
  expect_refused(cudaFree(memory), cudaErrorInvalidValue, "was already freed");
  expect_refused(cudaMalloc(&memory, std::size_t{1} << 40), cudaErrorMemoryAllocation, "out of memory");
}

TEST_F(HostCuda, CopiesOfTheWrongKindAreRefused) {
  void* const memory = allocate(100);
  char host[100] = {};
  expect_refused(cudaMemcpy(host, memory, 100, cudaMemcpyHostToDevice), cudaErrorInvalidValue, "is not device memory");
  expect_refused(cudaMemcpy(memory, host, 100, cudaMemcpyDeviceToHost), cudaErrorInvalidValue, "is memory of device 0");
  expect_refused(cudaMemcpy(memory, host, 101, cudaMemcpyHostToDevice), cudaErrorInvalidValue,
                 "extends beyond its allocation of 100 bytes");
  expect_refused(cudaMemset(host, 0, 100), cudaErrorInvalidValue, "is not device memory");
  EXPECT_OK(cudaMemcpy(memory, host, 100, cudaMemcpyDefault));
}

TEST_F(HostCuda, AStreamIsAQueue) {
  cudaStream_t stream{};
  EXPECT_OK(cudaStreamCreate(&stream));
  void* const memory = allocate(4);
  Gate gate(stream);
  int value = 1, back = 0;
  EXPECT_OK(cudaMemcpyAsync(memory, &value, 4, cudaMemcpyHostToDevice, stream));
  EXPECT_OK(cudaMemcpyAsync(&back, memory, 4, cudaMemcpyDeviceToHost, stream));
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(back, 0);
  gate.open();
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(back, 1);
  EXPECT_OK(cudaStreamQuery(stream));
  EXPECT_OK(cudaStreamDestroy(stream));
  expect_refused(cudaStreamQuery(stream), cudaErrorInvalidResourceHandle, "destroyed or never created");
}

TEST_F(HostCuda, AnEventHoldsAnotherStreamBack) {
  const cudaStream_t first = new_stream(), second = new_stream();
  const cudaEvent_t event = new_event();
  Gate gate(first);
  EXPECT_OK(cudaEventRecord(event, first));
  EXPECT_OK(cudaStreamWaitEvent(second, event, 0));
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(second), cudaErrorNotReady);
  gate.open();
  EXPECT_OK(cudaStreamSynchronize(second));
  EXPECT_OK(cudaEventQuery(event));
}

TEST_F(HostCuda, TheDefaultStreamAndBlockingStreamsWaitForEachOther) {
  const cudaStream_t blocking = new_stream(cudaStreamDefault), other = new_stream();
  Gate gate(blocking);
  void* const memory = allocate(4);
  EXPECT_OK(cudaMemset(memory, 0, 4));  // on the default stream
  EXPECT_EQ(cudaStreamQuery(nullptr), cudaErrorNotReady);
  EXPECT_OK(cudaStreamSynchronize(other));
  gate.open();
  EXPECT_OK(cudaStreamSynchronize(nullptr));
  Gate second(nullptr);
  EXPECT_OK(cudaMemsetAsync(memory, 0, 4, blocking));
  EXPECT_EQ(cudaStreamQuery(blocking), cudaErrorNotReady);
  second.open();
  EXPECT_OK(cudaStreamSynchronize(blocking));
}

// An exception destroys a stream and then the memory that its tasks still use.
TEST_F(HostCuda, FreeWaitsForTheTasksOfADestroyedStream) {
  cudaStream_t stream{};
  void* memory = nullptr;
  EXPECT_OK(cudaStreamCreate(&stream));
  EXPECT_OK(cudaMalloc(&memory, 4));
  Gate gate(stream);
  EXPECT_OK(cudaMemsetAsync(memory, 0, 4, stream));
  EXPECT_OK(cudaStreamDestroy(stream));
  auto freed = std::async(std::launch::async, [&] { EXPECT_OK(cudaFree(memory)); });
  EXPECT_EQ(freed.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  gate.open();
  freed.get();
}

TEST_F(HostCuda, EventsMeasureTime) {
  const cudaStream_t stream = new_stream();
  const cudaEvent_t start = new_event(cudaEventDefault), end = new_event(cudaEventDefault);
  EXPECT_OK(cudaEventRecord(start, stream));
  EXPECT_OK(cudaLaunchHostFunc(
      stream, [](void*) { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }, nullptr));
  EXPECT_OK(cudaEventRecord(end, stream));
  float milliseconds = 0;
  EXPECT_OK(cudaEventSynchronize(end));
  EXPECT_OK(cudaEventElapsedTime(&milliseconds, start, end));
  EXPECT_GE(milliseconds, 19);
  EXPECT_OK(cudaSetDevice(1));
  expect_refused(cudaEventRecord(start, new_stream()), cudaErrorInvalidResourceHandle, "the stream of device 1");
  EXPECT_OK(cudaSetDevice(0));
}

TEST_F(HostCuda, AGraphRepeatsTheCapturedTasksOfSeveralStreams) {
  const cudaStream_t stream = new_stream(), other = new_stream();
  const cudaEvent_t fork = new_event(), join = new_event();
  std::atomic<int> calls = 0;
  EXPECT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_OK(cudaEventRecord(fork, stream));
  EXPECT_OK(cudaStreamWaitEvent(other, fork, 0));
  for (const cudaStream_t one : {stream, other})
    EXPECT_OK(cudaLaunchHostFunc(
        one, [](void* c) { ++*static_cast<std::atomic<int>*>(c); }, &calls));
  EXPECT_OK(cudaEventRecord(join, other));
  EXPECT_OK(cudaStreamWaitEvent(stream, join, 0));
  expect_refused(cudaStreamSynchronize(stream), cudaErrorStreamCaptureUnsupported, "is being captured");
  cudaGraph_t graph{};
  expect_refused(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched, "began on another stream");
  EXPECT_OK(cudaStreamEndCapture(stream, &graph));
  EXPECT_OK(cudaStreamSynchronize(other)) << "it is not captured any more";
  expect_refused(cudaStreamWaitEvent(other, fork, 0), cudaErrorCapturedEvent, "has ended");
  cudaGraphExec_t executable{};
  EXPECT_OK(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  EXPECT_OK(cudaGraphDestroy(graph));
  EXPECT_EQ(calls, 0);
  for (int i = 0; i < 3; ++i) EXPECT_OK(cudaGraphLaunch(executable, stream));
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(calls, 6);
  EXPECT_OK(cudaGraphExecDestroy(executable));
  expect_refused(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported,
                 "the default stream");
}

TEST_F(HostCuda, ACaptureRefusesWhatAGraphCannotHold) {
  const cudaStream_t stream = new_stream(), other = new_stream();
  const cudaEvent_t before = new_event(), event = new_event();
  EXPECT_OK(cudaEventRecord(before, other));
  EXPECT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  void* memory = nullptr;
  expect_refused(cudaMalloc(&memory, 1), cudaErrorStreamCaptureUnsupported, "this thread is capturing");
  expect_refused(cudaMallocAsync(&memory, 1, stream), cudaErrorNotSupported, "before the capture");
  expect_refused(cudaStreamWaitEvent(stream, before, 0), cudaErrorStreamCaptureIsolation, "the event is outside");
  EXPECT_OK(cudaEventRecord(event, stream));
  expect_refused(cudaEventSynchronize(event), cudaErrorCapturedEvent, "recorded in a capture");
  cudaGraph_t graph{};
  expect_refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated, "was refused");
  EXPECT_OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  EXPECT_OK(cudaEventRecord(event, stream));
  EXPECT_OK(cudaStreamWaitEvent(other, event, 0));
  EXPECT_OK(cudaEventRecord(event, other));
  EXPECT_OK(cudaLaunchHostFunc(
      other, [](void*) {}, nullptr));
  EXPECT_OK(cudaStreamWaitEvent(stream, event, 0));
  expect_refused(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined, "work of another stream");
  EXPECT_OK(cudaEventRecord(event, stream)) << "outside of a capture it is an event like any other again";
  EXPECT_OK(cudaEventSynchronize(event));
}

TEST_F(HostCuda, AHostFunctionMustNotUseCuda) {
  const cudaStream_t stream = new_stream();
  static cudaError_t inside = cudaSuccess;
  EXPECT_OK(cudaLaunchHostFunc(
      stream, [](void*) { inside = cudaDeviceSynchronize(); }, nullptr));
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(inside, cudaErrorNotPermitted);
}

TEST_F(HostCuda, PropertiesAndAttributesAgree) {
  cudaDeviceProp properties{};
  EXPECT_OK(cudaGetDeviceProperties(&properties, 2));
  const auto attribute = [](cudaDeviceAttr which) {
    int value = -1;
    EXPECT_OK(cudaDeviceGetAttribute(&value, which, 2));
    return value;
  };
  EXPECT_EQ(properties.major * 10 + properties.minor, 90);
  EXPECT_EQ(attribute(cudaDevAttrComputeCapabilityMajor), 9);
  EXPECT_EQ(attribute(cudaDevAttrMaxGridDimX), properties.maxGridSize[0]);
  EXPECT_EQ(attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin), 227 << 10);
  EXPECT_EQ(attribute(cudaDevAttrCooperativeLaunch), 1);
  EXPECT_EQ(attribute(cudaDevAttrClusterLaunch), 0);
}

TEST_F(HostCuda, HintsAreAcceptedAndSmallCallsWork) {
  EXPECT_OK(cudaDeviceSetCacheConfig(cudaFuncCachePreferL1));
  int least = 1, greatest = 1;
  EXPECT_OK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t stream{};
  EXPECT_OK(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest));
  EXPECT_OK(cudaStreamGetPriority(stream, &least));
  EXPECT_EQ(least, greatest);
  int called = 0;
  EXPECT_OK(cudaStreamAddCallback(
      stream, [](cudaStream_t, cudaError_t code, void* data) { *static_cast<int*>(data) += code == cudaSuccess; },
      &called, 0));
  EXPECT_OK(cudaStreamSynchronize(stream));
  EXPECT_EQ(called, 1);
  EXPECT_OK(cudaStreamDestroy(stream));

  void *pinned = nullptr, *seen = nullptr, *managed = nullptr;
  EXPECT_OK(cudaHostAlloc(&pinned, 100, cudaHostAllocMapped));
  EXPECT_OK(cudaHostGetDevicePointer(&seen, pinned, 0));
  EXPECT_EQ(seen, pinned);
  EXPECT_OK(cudaMallocManaged(&managed, 100));
  EXPECT_OK(cudaStreamAttachMemAsync(nullptr, managed, 0, cudaMemAttachSingle));
#if CUDART_VERSION >= 13000
  const cudaMemLocation where{cudaMemLocationTypeDevice, {0}};
  EXPECT_OK(cudaMemPrefetchAsync(managed, 100, where, 0, nullptr));
  EXPECT_OK(cudaMemAdvise(managed, 100, cudaMemAdviseSetReadMostly, where));
  expect_refused(cudaMemAdvise(pinned, 100, cudaMemAdviseSetReadMostly, where), cudaErrorInvalidValue,
                 "not managed memory");
#endif
  void *const first = allocate(4), *second = nullptr;
  EXPECT_OK(cudaSetDevice(1));
  EXPECT_OK(cudaMalloc(&second, 4));
  const int sent = 77;
  int received = 0;
  EXPECT_OK(cudaMemcpy(first, &sent, 4, cudaMemcpyDefault));
  EXPECT_OK(cudaMemcpyPeer(second, 1, first, 0, 4));
  EXPECT_OK(cudaMemcpy(&received, second, 4, cudaMemcpyDefault));
  EXPECT_EQ(received, sent);
  expect_refused(cudaMemcpyPeer(second, 0, first, 1, 4), cudaErrorInvalidValue,
                 "the destination is memory of device 1, not 0");
  EXPECT_OK(cudaDeviceEnablePeerAccess(0, 0));
  EXPECT_OK(cudaDeviceDisablePeerAccess(0));
  expect_refused(cudaDeviceDisablePeerAccess(0), cudaErrorPeerAccessNotEnabled, "device 1 has no access to device 0");
  EXPECT_OK(cudaFree(second));
  EXPECT_OK(cudaSetDevice(0));
  EXPECT_OK(cudaFree(managed));
  EXPECT_OK(cudaFreeHost(pinned));
}

TEST_F(HostCuda, WhatIsNotEmulatedSaysSo) {
  EXPECT_EQ(cudaCreateChannelDesc(8, 16, 0, 0, cudaChannelFormatKindUnsigned).y, 16);
  testing::internal::CaptureStderr();
  expect_refused(cudaMallocArray(nullptr, nullptr, 1, 1, 0), cudaErrorNotSupported, "cudaMallocArray is not emulated");
  EXPECT_SAYS(testing::internal::GetCapturedStderr(), "emulated-gpu: cudaMallocArray is not emulated");
  EXPECT_STREQ(cudaGetErrorName(cudaErrorLaunchTimeout), "cudaErrorLaunchTimeout");
}

}  // namespace cuda_test
