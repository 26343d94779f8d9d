// For tests of the lessons cuda_aware and heat_nccl, loaded before MPI: an MPI that says that it is CUDA-aware, and
// whose MPI_Sendrecv takes device memory, which it copies through the host. It shows that the lessons pass the right
// buffers at the right time, nothing about a CUDA-aware MPI.
#include <cuda_runtime.h>
#include <mpi.h>

#include <cstdlib>
#include <vector>

extern "C" int MPIX_Query_cuda_support() { return 1; }

extern "C" int MPI_Sendrecv(const void* mine, int sent, MPI_Datatype type, int to, int send_tag, void* got, int room,
                            MPI_Datatype got_type, int from, int tag, MPI_Comm comm, MPI_Status* status) {
  int size = 0;
  MPI_Type_size(type, &size);
  const std::size_t bytes = std::size_t(sent) * std::size_t(size);
  std::vector<char> out(bytes), in(std::size_t(room) * std::size_t(size));
  // The copies are in a separate stream, which does not wait for the program's. An MPI does the same.
  cudaStream_t stream = nullptr;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess ||
      cudaMemcpyAsync(out.data(), mine, bytes, cudaMemcpyDeviceToHost, stream) != cudaSuccess ||
      cudaStreamSynchronize(stream) != cudaSuccess)
    std::abort();
  const int code =
      PMPI_Sendrecv(out.data(), sent, type, to, send_tag, in.data(), room, got_type, from, tag, comm, status);
  if ((from != MPI_PROC_NULL &&
       cudaMemcpyAsync(got, in.data(), in.size(), cudaMemcpyHostToDevice, stream) != cudaSuccess) ||
      cudaStreamSynchronize(stream) != cudaSuccess || cudaStreamDestroy(stream) != cudaSuccess)
    std::abort();
  return code;
}
