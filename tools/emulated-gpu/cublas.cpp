// cuBLAS on the CPU: products of float and double, as tasks of the handle's stream, with cuBLAS's checks. They are
// summed always in the same order.
#include "device.hpp"

#include <cublas_v2.h>
#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <vector>

using emulated_gpu::view;

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasMath_t mode = CUBLAS_DEFAULT_MATH;
};

namespace {

using Index = std::int64_t;
using Handle = cublasHandle_t;
using Status = cublasStatus_t;

// Thrown by a routine that fails.
struct CublasError {
  Status status;
  std::string why;
};
[[noreturn]] void refuse(const std::string& why, Status status = CUBLAS_STATUS_INVALID_VALUE) {
  throw CublasError{status, why};
}
void require(bool fine, const std::string& why) {
  if (!fine) refuse(why);
}

// Runs the body of the routine `name`. As cuBLAS, which writes "On entry to SGEMM parameter number 8 had an illegal
// value", it reports the reason on stderr, because the status does not.
template <class Function>
Status guarded(const char* name, Function&& body) try {
  body();
  return CUBLAS_STATUS_SUCCESS;
} catch (const CublasError& failure) {
  emulated_gpu::say(std::string(name) + ": " + failure.why);
  return failure.status;
}

struct Handles {
  std::mutex mutex;
  std::set<Handle> live;
};
Handles& handles() { return emulated_gpu::the<Handles>(); }
cublasContext& valid(Handle handle) {
  const std::lock_guard lock(handles().mutex);
  if (!handles().live.count(handle)) refuse("the handle was destroyed or never created", CUBLAS_STATUS_NOT_INITIALIZED);
  return *handle;
}

// An operand in device memory: `count` elements that the routine reads or writes.
void require_memory(const cublasContext& blas, const char* name, const void* data, Index count, std::size_t bytes) {
  if (count <= 0) return;
  const std::string why = emulated_gpu::refusal(data, static_cast<std::size_t>(count) * bytes, blas.device);
  if (!why.empty()) refuse(std::string(name) + ": " + why, CUBLAS_STATUS_EXECUTION_FAILED);
}

void enqueue(const cublasContext& blas, std::function<void()> task) {
  const cudaStream_t stream = emulated_gpu::find_stream(blas.stream, blas.device);
  if (!stream) refuse("the handle's stream was destroyed", CUBLAS_STATUS_EXECUTION_FAILED);
  if (const cudaError_t code = emulated_gpu::enqueue(stream, [=] { return task; }); code != cudaSuccess)
    refuse(cudaGetErrorString(code), CUBLAS_STATUS_EXECUTION_FAILED);
}

// Products

struct Shape {
  cublasOperation_t a, b;
  Index rows, columns, inner, lda, ldb, ldc;
};

// c = alpha * op(a) * op(b) + beta * c, matrices column by column. Each element is summed in the order of the inner
// dimension, without fused operations (-ffp-contract=off), so that all processors give the same bits.
template <class C>
void multiply(const Shape& shape, C alpha, const C* a, const C* b, C beta, C* c) {
  const bool a_transposed = shape.a != CUBLAS_OP_N, b_transposed = shape.b != CUBLAS_OP_N;
  std::vector<C> left, sums(static_cast<std::size_t>(shape.rows));
  Index stride = shape.lda;
  if (a_transposed && alpha != C{}) {
    left.resize(static_cast<std::size_t>(shape.rows * shape.inner));
    for (Index i = 0; i < shape.rows; ++i)
      for (Index k = 0; k < shape.inner; ++k) left[static_cast<std::size_t>(k * shape.rows + i)] = a[i * shape.lda + k];
    a = left.data(), stride = shape.rows;
  }
  for (Index j = 0; j < shape.columns; ++j) {
    std::fill(sums.begin(), sums.end(), C{});
    for (Index k = 0; alpha != C{} && k < shape.inner; ++k) {
      const C factor = b_transposed ? b[k * shape.ldb + j] : b[j * shape.ldb + k];
      const C* const column = a + k * stride;
      for (Index i = 0; i < shape.rows; ++i) sums[static_cast<std::size_t>(i)] += column[i] * factor;
    }
    for (Index i = 0; i < shape.rows; ++i) {
      C& out = c[j * shape.ldc + i];
      C value = alpha * sums[static_cast<std::size_t>(i)];
      if (beta != C{}) value += beta * out;  // with beta = 0, a NaN in c has no effect
      out = value;
    }
  }
}

template <class C>
void gemm(Handle handle, const Shape& shape, const C* alpha, const C* a, const C* b, const C* beta, C* c) {
  const cublasContext& blas = valid(handle);
  for (const auto& [name, operation] : {std::pair("transa", shape.a), {"transb", shape.b}})
    require(operation >= CUBLAS_OP_N && operation <= CUBLAS_OP_C,
            fmt::format("{} is no operation: {}", name, int{operation}));
  for (const auto& [name, value] : {std::pair("m", shape.rows), {"n", shape.columns}, {"k", shape.inner}})
    require(value >= 0, fmt::format("{} is negative: {}", name, value));
  const bool a_plain = shape.a == CUBLAS_OP_N, b_plain = shape.b == CUBLAS_OP_N;
  const Index a_rows = a_plain ? shape.rows : shape.inner, a_columns = a_plain ? shape.inner : shape.rows,
              b_rows = b_plain ? shape.inner : shape.columns, b_columns = b_plain ? shape.columns : shape.inner;
  for (const auto& [name, leading, least] :
       {std::tuple("lda", shape.lda, a_rows), {"ldb", shape.ldb, b_rows}, {"ldc", shape.ldc, shape.rows}})
    require(leading >= std::max(least, Index{1}),
            fmt::format("{} is {} and must be at least {}, the rows of the matrix", name, leading,
                        std::max(least, Index{1})));
  if (shape.rows == 0 || shape.columns == 0) return;
  require(alpha && beta, "alpha or beta is null");
  const auto memory = [&](const char* name, const C* data, Index rows, Index columns, Index leading) {
    if (columns > 0 && rows > 0) require_memory(blas, name, data, (columns - 1) * leading + rows, sizeof(C));
  };
  if (*alpha != C{}) {
    memory("A", a, a_rows, a_columns, shape.lda);
    memory("B", b, b_rows, b_columns, shape.ldb);
  }
  memory("C", c, shape.rows, shape.columns, shape.ldc);
  enqueue(blas, [=, factor = *alpha, keep = *beta] { multiply(shape, factor, view(a), view(b), keep, view(c)); });
}

// In the order of the stream; without one the copy is complete when this returns.
Status copy(int rows, int columns, int size, const void* from, int from_rows, void* to, int to_rows,
            std::optional<cudaStream_t> stream = {}) {
  const auto bytes = [&](int count) { return static_cast<std::size_t>(count) * static_cast<std::size_t>(size); };
  const auto count = static_cast<std::size_t>(columns);
  const cudaError_t code =
      stream ? cudaMemcpy2DAsync(to, bytes(to_rows), from, bytes(from_rows), bytes(rows), count, cudaMemcpyDefault,
                                 *stream)
             : cudaMemcpy2D(to, bytes(to_rows), from, bytes(from_rows), bytes(rows), count, cudaMemcpyDefault);
  return code == cudaSuccess ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_EXECUTION_FAILED;
}

}  // namespace

extern "C" {

Status cublasCreate(Handle* handle) {
  return guarded(__func__, [&] {
    require(handle, "the handle's address is null");
    int device = 0;
    if (const cudaError_t code = cudaGetDevice(&device); code != cudaSuccess)
      refuse(cudaGetErrorString(code), CUBLAS_STATUS_NOT_INITIALIZED);
    const std::lock_guard lock(handles().mutex);
    handles().live.insert(*handle = new cublasContext{.device = device});
  });
}
Status cublasDestroy(Handle handle) {
  return guarded(__func__, [&] {
    const int device = valid(handle).device;
    int before = 0;
    cudaGetDevice(&before);  // like cuBLAS, waits for the device
    cudaSetDevice(device);
    cudaDeviceSynchronize();
    cudaSetDevice(before);
    const std::lock_guard lock(handles().mutex);
    handles().live.erase(handle);
    delete handle;
  });
}
Status cublasSetStream(Handle handle, cudaStream_t stream) {
  return guarded(__func__, [&] {
    cublasContext& blas = valid(handle);
    const cudaStream_t found = emulated_gpu::find_stream(stream, blas.device);
    require(found, "the stream was destroyed or never created");
    const int device = emulated_gpu::device_of(found);
    require(device == blas.device,
            fmt::format("the stream is of device {}, the handle of device {}", device, blas.device));
    blas.stream = stream;
  });
}
// TF32 is a hint: the emulation computes in float.
Status cublasSetMathMode(Handle handle, cublasMath_t mode) {
  return guarded(__func__, [&] { valid(handle).mode = mode; });
}
Status cublasGetMathMode(Handle handle, cublasMath_t* mode) {
  return guarded(__func__, [&] { *mode = valid(handle).mode; });
}
const char* cublasGetStatusString(Status status) {
  static constexpr std::pair<Status, const char*> texts[] = {
      {CUBLAS_STATUS_SUCCESS, "success"},
      {CUBLAS_STATUS_NOT_INITIALIZED, "the library was not initialized"},
      {CUBLAS_STATUS_INVALID_VALUE, "an unsupported value or parameter was passed to the function"},
      {CUBLAS_STATUS_EXECUTION_FAILED, "the function failed to launch on the GPU"},
      {CUBLAS_STATUS_NOT_SUPPORTED, "the functionality requested is not supported"}};
  const auto* const found = std::ranges::find(texts, status, &std::pair<Status, const char*>::first);
  return found == std::end(texts) ? "unknown" : found->second;  // the emulation returns no others
}

// The header gives these the suffix _v2 where they have it.
#define GEMM(name, T)                                                                                                 \
  Status name(Handle handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const T* alpha, \
              const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {                               \
    return guarded(__func__, [&] { gemm(handle, {transa, transb, m, n, k, lda, ldb, ldc}, alpha, a, b, beta, c); });  \
  }
GEMM(cublasSgemm, float)
GEMM(cublasDgemm, double)
// y = alpha * op(A) * x + beta * y: the product of rows x' * op(A)'
#define GEMV(name, T)                                                                                                \
  Status name(Handle handle, cublasOperation_t trans, int m, int n, const T* alpha, const T* a, int lda, const T* x, \
              int incx, const T* beta, T* y, int incy) {                                                             \
    const bool plain = trans == CUBLAS_OP_N;                                                                         \
    const Shape shape{                                                                                               \
        CUBLAS_OP_N, plain ? CUBLAS_OP_T : CUBLAS_OP_N, 1, plain ? m : n, plain ? n : m, incx, lda, incy};           \
    return guarded(__func__, [&] { gemm(handle, shape, alpha, x, a, beta, y); });                                    \
  }
GEMV(cublasSgemv, float)
GEMV(cublasDgemv, double)
Status cublasSgemmStridedBatched(Handle handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
                                 const float* alpha, const float* a, int lda, long long next_a, const float* b, int ldb,
                                 long long next_b, const float* beta, float* c, int ldc, long long next_c, int count) {
  return guarded(__func__, [&] {
    for (int i = 0; i < count; ++i)
      gemm(handle, {transa, transb, m, n, k, lda, ldb, ldc}, alpha, a + i * next_a, b + i * next_b, beta,
           c + i * next_c);
  });
}

// y += alpha * x. A negative step begins at the end, as in BLAS.
Status cublasSaxpy(Handle handle, int n, const float* alpha, const float* x, int incx, float* y, int incy) {
  return guarded(__func__, [&] {
    const cublasContext& blas = valid(handle);
    const Index count = n, step_x = incx, step_y = incy;
    require(alpha, "alpha is null");
    require_memory(blas, "x", x, (count - 1) * std::abs(step_x) + 1, sizeof(float));
    require_memory(blas, "y", y, (count - 1) * std::abs(step_y) + 1, sizeof(float));
    enqueue(blas, [=, factor = *alpha] {
      const float* from = view(x) + (step_x < 0 ? (1 - count) * step_x : 0);
      float* to = view(y) + (step_y < 0 ? (1 - count) * step_y : 0);
      for (Index i = 0; i < count; ++i, from += step_x, to += step_y) *to += factor * *from;
    });
  });
}
// Copies between host and device, in which Set and Get are the same here. A vector has rows of one element.
#define COPIES(verb)                                                                                                   \
  Status cublas##verb##Matrix(int rows, int columns, int size, const void* a, int lda, void* b, int ldb) {             \
    return copy(rows, columns, size, a, lda, b, ldb);                                                                  \
  }                                                                                                                    \
  Status cublas##verb##MatrixAsync(int rows, int columns, int size, const void* a, int lda, void* b, int ldb,          \
                                   cudaStream_t stream) {                                                              \
    return copy(rows, columns, size, a, lda, b, ldb, stream);                                                          \
  }                                                                                                                    \
  Status cublas##verb##Vector(int n, int size, const void* x, int incx, void* y, int incy) {                           \
    return copy(1, n, size, x, incx, y, incy);                                                                         \
  }                                                                                                                    \
  Status cublas##verb##VectorAsync(int n, int size, const void* x, int incx, void* y, int incy, cudaStream_t stream) { \
    return copy(1, n, size, x, incx, y, incy, stream);                                                                 \
  }
COPIES(Set)
COPIES(Get)

Status cublasGemmEx(Handle handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
                    const void* alpha, const void* a, cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                    int ldb, const void* beta, void* c, cudaDataType c_type, int ldc, cublasComputeType_t compute,
                    cublasGemmAlgo_t) {
  return guarded(__func__, [&] {
    const auto run = [&]<class C>(C) {
      gemm(handle, {transa, transb, m, n, k, lda, ldb, ldc}, static_cast<const C*>(alpha), static_cast<const C*>(a),
           static_cast<const C*>(b), static_cast<const C*>(beta), static_cast<C*>(c));
    };
    if (a_type == b_type && b_type == c_type) {
      const bool tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
      if (a_type == CUDA_R_32F && (compute == CUBLAS_COMPUTE_32F || tf32)) return run(float{});
      if (a_type == CUDA_R_64F && compute == CUBLAS_COMPUTE_64F) return run(double{});
    }
    refuse(
        fmt::format("A, B, C of cudaDataType {}, {}, {} with cublasComputeType {}: the emulation has float and double "
                    "only, in one type",
                    int{a_type}, int{b_type}, int{c_type}, int{compute}),
        CUBLAS_STATUS_NOT_SUPPORTED);
  });
}

}  // extern "C"
