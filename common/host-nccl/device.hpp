// device.hpp: functions of the CUDA stand-in for the NCCL stand-in, in addition to CUDA's own.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace host_nccl {

using Task = std::function<void()>;

// Enqueues the task that make() returns. make() is called at once, or, if the stream is being captured, at each launch
// of the graph.
cudaError_t enqueue(cudaStream_t stream, std::function<Task()> make);

// The stream of this handle, which may mean the default stream of `device`; null if it is invalid.
cudaStream_t find_stream(cudaStream_t stream, int device);
int device_of(cudaStream_t found);

// The reason why a kernel on `device` cannot use [data, data + bytes); "" if it can.
std::string refusal(const void* data, std::size_t bytes, int device);

// The number of `device` in CUDA_VISIBLE_DEVICES: the same in all processes of the machine.
int physical_device(int device);

// HOST_NCCL_DEADLINE: longer waits are reported on stderr.
std::chrono::seconds deadline();

// Writes a line to stderr with one write().
void say(const std::string& line);

}  // namespace host_nccl

// "4 stand-ins of GPUs ...", or null if HOST_NCCL_DEVICES sets none. Programs find it with dlsym.
extern "C" const char* host_nccl_description();
