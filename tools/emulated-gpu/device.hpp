// device.hpp: where the emulated libraries meet: the runtime's functions for kernels, cuBLAS and NCCL, beside CUDA's.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace emulated_gpu {

using Task = std::function<void()>;

// The only T of this process. Never destroyed: threads may still use it when the process ends.
template <class T>
T& the() {
  static T& one = *new T;
  return one;
}

// Enqueues the task that make() returns. make() is called at once, or, if the stream is being captured, at each launch
// of the graph.
cudaError_t enqueue(cudaStream_t stream, std::function<Task()> make);

// The stream of this handle, which may mean the default stream of `device`; null if it is invalid.
cudaStream_t find_stream(cudaStream_t stream, int device);
int device_of(cudaStream_t found);

// The reason why a kernel on `device` cannot use [data, data + bytes); "" if it can.
std::string refusal(const void* data, std::size_t bytes, int device);

// Device memory has addresses in this range, where nothing is mapped, so that code of the host cannot touch it, as on a
// GPU.
struct Addresses {
  std::atomic<std::uintptr_t> begin{0}, bytes{0};
};
extern const Addresses& device_addresses;
// Where the emulation itself finds what `data` points to: device memory is mapped at a constant distance from its
// addresses, other memory where it is. Interpreter, copies, cuBLAS and NCCL read and write through view() only.
template <class T>
T* view(T* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return address - device_addresses.begin < device_addresses.bytes
             ? reinterpret_cast<T*>(address + device_addresses.bytes)
             : data;
}

// With --check: the task of a stream that this thread carries out uses these bytes of a view(). What another stream
// does there in no order is reported.
enum class Touch { read, write, atomic };
void touch(const void* view, std::size_t bytes, Touch how, const std::string& what);

// With --check: starts the work of all streams, because the caller waits for some of it without a wait of CUDA's.
void start_late_work();

// For variables of programs (__device__ int x): memory that stays allocated until the process ends.
void* allocate_variable(std::size_t bytes, int device);

// A kernel on the device has failed: until the process ends, all calls on the device return this error.
void set_sticky_error(int device, cudaError_t code, const std::string& why);
bool failed(int device);
// The next call on the device returns this error, and so does its next copy or synchronization.
void set_error_once(int device, cudaError_t code, const std::string& why);

// The number of `device` in CUDA_VISIBLE_DEVICES: the same in all processes of the machine.
int physical_device(int device);

// EMULATED_GPU_DEADLINE: longer waits are reported on stderr.
std::chrono::seconds deadline();

// with-gpus --check, --seed
bool checks();
unsigned seed();

std::string host_name();

// Writes a line to stderr with one write().
void say(const std::string& line);
// The same for a mistake of the program: with-gpus --error-exitcode
void report(const std::string& line);

}  // namespace emulated_gpu

// "4 emulated GPUs ...", or null if EMULATED_GPUS sets none. Programs find it with dlsym.
extern "C" const char* emulated_gpu_description();
