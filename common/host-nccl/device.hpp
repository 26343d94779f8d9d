// device.hpp: what the stand-in of NCCL asks of the stand-in of CUDA, beside CUDA's own interface.
#pragma once

#include <cuda_runtime_api.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>

namespace host_nccl {

using Task = std::function<void()>;

// Puts on `stream` what make() returns. It is called at once, or, while the stream is captured, at each launch of the
// graph.
cudaError_t enqueue(cudaStream_t stream, std::function<Task()> make);

// The stream that `stream` stands for on `device`, whose default stream it may be; null: it is none.
cudaStream_t find_stream(cudaStream_t stream, int device);
int device_of(cudaStream_t found);

// Why [data, data + bytes) is not memory that a kernel on `device` can use; "" if it is.
std::string refusal(const void* data, std::size_t bytes, int device);

// The number that CUDA_VISIBLE_DEVICES gave `device`: the same in all processes of the machine.
int physical_device(int device);

// HOST_NCCL_DEADLINE: after how long a wait is worth a line on stderr.
std::chrono::seconds deadline();

// A line on stderr, in one piece.
void say(const std::string& line);

}  // namespace host_nccl

// "4 stand-ins of GPUs ...", or null where HOST_NCCL_DEVICES asks for none. Programs find it by dlsym.
extern "C" const char* host_nccl_description();
