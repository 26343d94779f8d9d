// cuda.hpp: what several of these tests need: calls with the reason why they fail, and arrays in device memory.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <test/support/says.hpp>

#include <cstdlib>

inline const int four_devices = setenv("EMULATED_GPUS", "4", 1);

#define EXPECT_OK(call) EXPECT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaPeekAtLastError())
#define ASSERT_OK(call) ASSERT_EQ(call, cudaSuccess) << cudaGetErrorString(cudaPeekAtLastError())
#define EXPECT_NCCL_OK(call) EXPECT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)
#define ASSERT_NCCL_OK(call) ASSERT_EQ(call, ncclSuccess) << ncclGetLastError(nullptr)

inline void expect_refused(cudaError_t code, cudaError_t expected, const std::string& why) {
  EXPECT_EQ(code, expected);
  EXPECT_SAYS(cudaGetErrorString(code), why);
  EXPECT_EQ(cudaGetLastError(), expected);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

// Destroys the streams, events and memory that a test has made.
class CudaTest : public ::testing::Test {
 protected:
  ~CudaTest() override {
    EXPECT_OK(cudaSetDevice(0));
    for (const cudaStream_t stream : streams_) EXPECT_OK(cudaStreamDestroy(stream));
    for (const cudaEvent_t event : events_) EXPECT_OK(cudaEventDestroy(event));
    for (char* const memory : memory_) EXPECT_OK(cudaFree(memory));
  }
  cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
    EXPECT_OK(cudaStreamCreateWithFlags(&streams_.emplace_back(), flags));
    return streams_.back();
  }
  cudaEvent_t new_event(unsigned flags = cudaEventDisableTiming) {
    EXPECT_OK(cudaEventCreateWithFlags(&events_.emplace_back(), flags));
    return events_.back();
  }
  char* allocate(std::size_t bytes) {
    void* memory = nullptr;
    EXPECT_OK(cudaMalloc(&memory, bytes));
    return memory_.emplace_back(static_cast<char*>(memory));
  }
  std::vector<char*> memory_;

 private:
  std::vector<cudaStream_t> streams_;
  std::vector<cudaEvent_t> events_;
};

template <class T>
class Array {
 public:
  explicit Array(const std::vector<T>& values) : count_(values.size()) {
    cudaMalloc(&data_, count_ * sizeof(T));
    cudaMemcpy(data_, values.data(), count_ * sizeof(T), cudaMemcpyHostToDevice);
    cudaStreamSynchronize(nullptr);  // because other streams may see the copy late
  }
  ~Array() { cudaFree(data_); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;
  operator T*() const { return static_cast<T*>(data_); }
  std::vector<T> get() const {  // after the work of all streams of the device
    std::vector<T> values(count_);
    EXPECT_OK(cudaDeviceSynchronize());
    cudaMemcpy(values.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost);
    return values;
  }

 private:
  void* data_ = nullptr;
  std::size_t count_;
};
