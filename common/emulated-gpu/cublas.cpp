// cuBLAS on the CPU: the routines that programs of deep learning and NVIDIA's samples use, as tasks of the handle's
// stream, with cuBLAS's checks. Products are summed in the compute type, always in the same order.
#include "device.hpp"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <mutex>
#include <set>
#include <vector>

using emulated_gpu::Task;
using emulated_gpu::view;

struct cublasContext {
  int device = 0;
  cudaStream_t stream = nullptr;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
};

namespace {

using Index = std::int64_t;
using Handle = cublasHandle_t;
using Status = cublasStatus_t;

// Thrown by a routine that fails.
struct Failure {
  Status status;
  std::string why;
};
[[noreturn]] void refuse(const std::string& why, Status status = CUBLAS_STATUS_INVALID_VALUE) {
  throw Failure{status, why};
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
} catch (const Failure& failure) {
  emulated_gpu::say(std::string(name) + ": " + failure.why);
  return failure.status;
}

struct Handles {
  std::mutex mutex;
  std::set<Handle> live;
};
Handles& handles() {
  static Handles& all = *new Handles;
  return all;
}
cublasContext& valid(Handle handle) {
  const std::lock_guard lock(handles().mutex);
  if (!handles().live.count(handle)) refuse("the handle was destroyed or never created", CUBLAS_STATUS_NOT_INITIALIZED);
  return *handle;
}

// The types' values in the type they are computed in.
template <class T>
T widen(T value) {
  return value;
}
float widen(__half value) { return __half2float(value); }
float widen(__nv_bfloat16 value) { return __bfloat162float(value); }
int widen(std::int8_t value) { return value; }
template <class T, class C>
T narrow(C value) {
  if constexpr (std::is_same_v<T, __half>)
    return __float2half(static_cast<float>(value));
  else if constexpr (std::is_same_v<T, __nv_bfloat16>)
    return __float2bfloat16(static_cast<float>(value));
  else
    return static_cast<T>(value);
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

// A scalar argument: its value now, or the device's when the task runs, as the pointer mode says.
template <class C>
std::function<C()> scalar(const cublasContext& blas, const char* name, const void* value) {
  require(value, std::string(name) + " is null");
  const C* const at = static_cast<const C*>(value);
  if (blas.pointers == CUBLAS_POINTER_MODE_DEVICE) {
    require_memory(blas, name, value, 1, sizeof(C));
    return [at] { return *view(at); };
  }
  return [now = *at] { return now; };
}

// Products

enum class Rounding { none, half, bfloat16, tf32, half_sums };  // of the factors, and half_sums of each sum

template <class C>
C rounded(C value, Rounding rounding) {
  if constexpr (std::is_same_v<C, float>) {
    if (rounding == Rounding::half) return __half2float(__float2half(value));
    if (rounding == Rounding::bfloat16) return __bfloat162float(__float2bfloat16(value));
    if (rounding == Rounding::tf32)
      return std::bit_cast<float>((std::bit_cast<std::uint32_t>(value) + 0x1000) & ~0x1fffu);
  }
  return value;
}

constexpr Index tile_rows_bytes = 64, tile_columns = 4, inner_block = 256;
template <class C>
constexpr Index tile_rows = tile_rows_bytes / static_cast<Index>(sizeof(C));

// sums[column][row] += a[i][row] * b[i][column] for all i, in their order.
template <class C>
[[gnu::always_inline]] inline void add_tile(Index inner, const C* a, const C* b, C* sums, Index stride) {
  typedef C Vector [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(alignof(C))]];
  Vector tile[tile_columns][2];
  for (Index j = 0; j < tile_columns; ++j)
    for (Index v = 0; v < 2; ++v) tile[j][v] = reinterpret_cast<const Vector*>(sums + j * stride)[v];
  for (Index i = 0; i < inner; ++i) {
    const Vector* const left = reinterpret_cast<const Vector*>(a + i * tile_rows<C>);
    for (Index j = 0; j < tile_columns; ++j)
      for (Index v = 0; v < 2; ++v) tile[j][v] += left[v] * b[i * tile_columns + j];
  }
  for (Index j = 0; j < tile_columns; ++j)
    for (Index v = 0; v < 2; ++v) reinterpret_cast<Vector*>(sums + j * stride)[v] = tile[j][v];
}
// Without fused operations (-ffp-contract=off), so that all processors give the same bits.
template <class C>
void add_tile_baseline(Index inner, const C* a, const C* b, C* sums, Index stride) {
  add_tile(inner, a, b, sums, stride);
}
#ifdef __x86_64__
template <class C>
[[gnu::target("avx2")]] void add_tile_avx2(Index inner, const C* a, const C* b, C* sums, Index stride) {
  add_tile(inner, a, b, sums, stride);
}
#endif
// Sums of halves are rounded each time.
void add_tile_half(Index inner, const float* a, const float* b, float* sums, Index stride) {
  for (Index j = 0; j < tile_columns; ++j)
    for (Index r = 0; r < tile_rows<float>; ++r) {
      float sum = sums[j * stride + r];
      for (Index i = 0; i < inner; ++i)
        sum = __half2float(__float2half(sum + a[i * tile_rows<float> + r] * b[i * tile_columns + j]));
      sums[j * stride + r] = sum;
    }
}

template <class C>
auto tile_function(Rounding rounding) {
  auto* add = &add_tile_baseline<C>;
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) add = &add_tile_avx2<C>;
#endif
  if constexpr (std::is_same_v<C, float>)
    if (rounding == Rounding::half_sums) add = &add_tile_half;
  return add;
}

struct Shape {
  cublasOperation_t a, b;
  Index rows, columns, inner, lda, ldb, ldc;
};
constexpr Index up(Index count, Index unit) { return (count + unit - 1) / unit * unit; }

// c = alpha * op(a) * op(b) + beta * c, matrices column by column: blocks of the inner dimension are packed into tiles.
template <class C, class In, class Out>
void multiply(const Shape& shape, Rounding rounding, C alpha, const In* a, const In* b, C beta, Out* c) {
  const Index rows = up(shape.rows, tile_rows<C>), columns = up(shape.columns, tile_columns);
  std::vector<C> sums(static_cast<std::size_t>(rows * columns)), left(static_cast<std::size_t>(rows * inner_block)),
      right(static_cast<std::size_t>(columns * inner_block));
  const auto add = tile_function<C>(rounding);
  const bool a_transposed = shape.a != CUBLAS_OP_N, b_transposed = shape.b != CUBLAS_OP_N;
  const auto pack = [&](std::vector<C>& to, const In* from, Index lines, Index tile, Index first, Index inner,
                        Index line_step, Index inner_step) {
    for (Index begin = 0; begin < lines; begin += tile)
      for (Index i = 0; i < inner; ++i)
        for (Index l = 0; l < tile; ++l)
          to[static_cast<std::size_t>(begin * inner + i * tile + l)] =
              begin + l < lines
                  ? rounded<C>(static_cast<C>(widen(from[(begin + l) * line_step + (first + i) * inner_step])),
                               rounding)
                  : C{};
  };
  for (Index first = 0; alpha != C{} && first < shape.inner; first += inner_block) {
    const Index inner = std::min(inner_block, shape.inner - first);
    pack(left, a, shape.rows, tile_rows<C>, first, inner, a_transposed ? shape.lda : 1, a_transposed ? 1 : shape.lda);
    pack(right, b, shape.columns, tile_columns, first, inner, b_transposed ? 1 : shape.ldb,
         b_transposed ? shape.ldb : 1);
    for (Index j = 0; j < columns; j += tile_columns)
      for (Index i = 0; i < rows; i += tile_rows<C>)
        add(inner, &left[static_cast<std::size_t>(i * inner)], &right[static_cast<std::size_t>(j * inner)],
            &sums[static_cast<std::size_t>(j * rows + i)], rows);
  }
  for (Index j = 0; j < shape.columns; ++j)
    for (Index i = 0; i < shape.rows; ++i) {
      Out& out = c[j * shape.ldc + i];
      C value = alpha * sums[static_cast<std::size_t>(j * rows + i)];
      if (beta != C{}) value += beta * static_cast<C>(widen(out));  // with beta = 0, a NaN in c has no effect
      out = narrow<Out>(value);
    }
}

// `Scale` is the type of alpha and beta.
template <class C, class In, class Out, class Scale = C>
void gemm(Handle handle, const Shape& shape, Rounding rounding, const void* alpha, const void* a, const void* b,
          const void* beta, void* c) {
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
  const auto factor = scalar<Scale>(blas, "alpha", alpha), keep = scalar<Scale>(blas, "beta", beta);
  const auto memory = [&](const char* name, const void* data, Index rows, Index columns, Index leading,
                          std::size_t bytes) {
    if (columns > 0 && rows > 0) require_memory(blas, name, data, (columns - 1) * leading + rows, bytes);
  };
  const bool host = blas.pointers == CUBLAS_POINTER_MODE_HOST;
  if (!host || factor() != Scale{}) {
    memory("A", a, a_rows, a_columns, shape.lda, sizeof(In));
    memory("B", b, b_rows, b_columns, shape.ldb, sizeof(In));
  }
  memory("C", c, shape.rows, shape.columns, shape.ldc, sizeof(Out));
  enqueue(blas, [=] {
    multiply<C, In, Out>(shape, rounding, static_cast<C>(widen(factor())), view(static_cast<const In*>(a)),
                         view(static_cast<const In*>(b)), static_cast<C>(widen(keep())), view(static_cast<Out*>(c)));
  });
}

// Of a routine for floats that names no compute type.
Rounding by_math_mode(Handle handle) {
  return valid(handle).math & CUBLAS_TF32_TENSOR_OP_MATH ? Rounding::tf32 : Rounding::none;
}
// One of cublasSgemm, cublasDgemm and cublasHgemm.
template <class T>
void gemm_of(Handle handle, const Shape& shape, const T* alpha, const T* a, const T* b, const T* beta, T* c) {
  if constexpr (std::is_same_v<T, __half>)
    gemm<float, T, T, T>(handle, shape, Rounding::half_sums, alpha, a, b, beta, c);
  else if constexpr (std::is_same_v<T, float>)
    gemm<T, T, T>(handle, shape, by_math_mode(handle), alpha, a, b, beta, c);
  else
    gemm<T, T, T>(handle, shape, Rounding::none, alpha, a, b, beta, c);
}

// The combinations of types that cuBLAS has.
void gemm_ex(Handle handle, const Shape& shape, const void* alpha, const void* a, cudaDataType a_type, const void* b,
             cudaDataType b_type, const void* beta, void* c, cudaDataType c_type, cublasComputeType_t compute) {
  const auto run = [&]<class C, class In, class Out, class Scale = C>(Rounding rounding = Rounding::none) {
    gemm<C, In, Out, Scale>(handle, shape, rounding, alpha, a, b, beta, c);
  };
  const auto types = [&](cudaDataType in, cudaDataType out) { return a_type == in && b_type == in && c_type == out; };
  valid(handle);
  switch (compute) {
    case CUBLAS_COMPUTE_64F:
    case CUBLAS_COMPUTE_64F_PEDANTIC:
      if (types(CUDA_R_64F, CUDA_R_64F)) return run.template operator()<double, double, double>();
      break;
    case CUBLAS_COMPUTE_32I:
    case CUBLAS_COMPUTE_32I_PEDANTIC:
      if (types(CUDA_R_8I, CUDA_R_32I)) return run.template operator()<int, std::int8_t, int>();
      break;
    case CUBLAS_COMPUTE_16F:
    case CUBLAS_COMPUTE_16F_PEDANTIC:
      if (types(CUDA_R_16F, CUDA_R_16F))
        return run.template operator()<float, __half, __half, __half>(Rounding::half_sums);
      break;
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      if (types(CUDA_R_32F, CUDA_R_32F))
        return run.template operator()<float, float, float>(compute == CUBLAS_COMPUTE_32F_FAST_16F ? Rounding::half
                                                            : compute == CUBLAS_COMPUTE_32F_FAST_16BF
                                                                ? Rounding::bfloat16
                                                                : Rounding::tf32);
      break;
    case CUBLAS_COMPUTE_32F:
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      if (types(CUDA_R_32F, CUDA_R_32F))
        return run.template operator()<float, float, float>(compute == CUBLAS_COMPUTE_32F ? by_math_mode(handle)
                                                                                          : Rounding::none);
      if (types(CUDA_R_16BF, CUDA_R_16BF)) return run.template operator()<float, __nv_bfloat16, __nv_bfloat16>();
      if (types(CUDA_R_16BF, CUDA_R_32F)) return run.template operator()<float, __nv_bfloat16, float>();
      if (types(CUDA_R_16F, CUDA_R_16F)) return run.template operator()<float, __half, __half>();
      if (types(CUDA_R_16F, CUDA_R_32F)) return run.template operator()<float, __half, float>();
      if (types(CUDA_R_8I, CUDA_R_32F)) return run.template operator()<float, std::int8_t, float>();
      break;
    default:
      break;
  }
  refuse(
      fmt::format(
          "A, B, C of cudaDataType {}, {}, {} with cublasComputeType {}: cuBLAS or its emulation has no such product",
          int{a_type}, int{b_type}, int{c_type}, int{compute}),
      CUBLAS_STATUS_NOT_SUPPORTED);
}

// Vectors

template <class T>
struct Vector {
  T* data;
  Index count, step;
  T& operator[](Index i) const { return view(data)[step >= 0 ? i * step : (i - count + 1) * step]; }
};
template <class T>
Vector<T> vector(const cublasContext& blas, const char* name, T* data, Index count, Index step) {
  if (count > 0) require_memory(blas, name, data, (count - 1) * std::abs(step) + 1, sizeof(T));
  return {data, count, step};
}

// A routine whose result is a number: at the host when it returns, or in device memory in stream order.
template <class T>
void reduce(const cublasContext& blas, T* result, const std::function<T()>& compute) {
  require(result, "the result's address is null");
  if (blas.pointers == CUBLAS_POINTER_MODE_DEVICE) {
    require_memory(blas, "result", result, 1, sizeof(T));
    return enqueue(blas, [=] { *view(result) = compute(); });
  }
  enqueue(blas, [=] { *result = compute(); });
  const cudaStream_t stream = emulated_gpu::find_stream(blas.stream, blas.device);
  if (const cudaError_t code = cudaStreamSynchronize(stream); code != cudaSuccess)
    refuse(cudaGetErrorString(code), CUBLAS_STATUS_EXECUTION_FAILED);
}

template <class T>
void axpy(Handle handle, Index n, const T* alpha, const T* x, Index step_x, T* y, Index step_y) {
  const cublasContext& blas = valid(handle);
  if (n <= 0) return;
  const auto factor = scalar<T>(blas, "alpha", alpha);
  const auto from = vector(blas, "x", x, n, step_x);
  const auto to = vector(blas, "y", y, n, step_y);
  enqueue(blas, [=] {
    for (Index i = 0; i < n; ++i) to[i] += factor() * from[i];
  });
}
template <class T>
void scal(Handle handle, Index n, const T* alpha, T* x, Index step) {
  const cublasContext& blas = valid(handle);
  if (n <= 0 || step <= 0) return;
  const auto factor = scalar<T>(blas, "alpha", alpha);
  const auto to = vector(blas, "x", x, n, step);
  enqueue(blas, [=] {
    for (Index i = 0; i < n; ++i) to[i] *= factor();
  });
}
template <class T>
void dot(Handle handle, Index n, const T* x, Index step_x, const T* y, Index step_y, T* result) {
  const cublasContext& blas = valid(handle);
  const auto left = vector(blas, "x", x, n, step_x);
  const auto right = vector(blas, "y", y, n, step_y);
  reduce<T>(blas, result, [=] {
    T sum = 0;
    for (Index i = 0; i < n; ++i) sum += left[i] * right[i];
    return sum;
  });
}
template <class T>
void nrm2(Handle handle, Index n, const T* x, Index step, T* result) {
  const cublasContext& blas = valid(handle);
  const auto from = vector(blas, "x", x, step > 0 ? n : 0, step);
  reduce<T>(blas, result, [=] {
    T scale = 0;  // without overflow
    for (Index i = 0; i < from.count; ++i) scale = std::max(scale, std::abs(from[i]));
    T sum = 0;
    for (Index i = 0; i < from.count && scale > 0; ++i) sum += from[i] / scale * (from[i] / scale);
    return scale * std::sqrt(sum);
  });
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
    require(emulated_gpu::device_of(found) == blas.device,
            fmt::format("the stream is of device {}, the handle of device {}", emulated_gpu::device_of(found),
                        blas.device));
    blas.stream = stream;
  });
}
Status cublasSetPointerMode(Handle handle, cublasPointerMode_t mode) {
  return guarded(__func__, [&] { valid(handle).pointers = mode; });
}
Status cublasSetMathMode(Handle handle, cublasMath_t mode) {
  return guarded(__func__, [&] { valid(handle).math = mode; });
}
Status cublasGetVersion(Handle, int* version) {
  *version = CUBLAS_VERSION;
  return CUBLAS_STATUS_SUCCESS;
}
const char* cublasGetStatusString(Status status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS:
      return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED:
      return "the library was not initialized";
    case CUBLAS_STATUS_INVALID_VALUE:
      return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED:
      return "the function failed to launch on the GPU";
    case CUBLAS_STATUS_NOT_SUPPORTED:
      return "the functionality requested is not supported";
    default:
      return "unknown";  // the emulation returns no others
  }
}

// The header gives these the suffix _v2 where they have it.
#define GEMM(name, T)                                                                                                 \
  Status name(Handle handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k, const T* alpha, \
              const T* a, int lda, const T* b, int ldb, const T* beta, T* c, int ldc) {                               \
    return guarded(__func__, [&] {                                                                                    \
      gemm_of(handle, {transa, transb, m, n, k, lda, ldb, ldc}, alpha, a, b, beta, c);                                \
    });                                                                                                               \
  }
GEMM(cublasSgemm, float)
GEMM(cublasDgemm, double)
GEMM(cublasHgemm, __half)
#define VECTORS(axpy_name, scal_name, dot_name, nrm2_name, T)                                    \
  Status axpy_name(Handle handle, int n, const T* alpha, const T* x, int incx, T* y, int incy) { \
    return guarded(__func__, [&] { axpy<T>(handle, n, alpha, x, incx, y, incy); });              \
  }                                                                                              \
  Status scal_name(Handle handle, int n, const T* alpha, T* x, int incx) {                       \
    return guarded(__func__, [&] { scal<T>(handle, n, alpha, x, incx); });                       \
  }                                                                                              \
  Status dot_name(Handle handle, int n, const T* x, int incx, const T* y, int incy, T* result) { \
    return guarded(__func__, [&] { dot<T>(handle, n, x, incx, y, incy, result); });              \
  }                                                                                              \
  Status nrm2_name(Handle handle, int n, const T* x, int incx, T* result) {                      \
    return guarded(__func__, [&] { nrm2<T>(handle, n, x, incx, result); });                      \
  }
VECTORS(cublasSaxpy, cublasSscal, cublasSdot, cublasSnrm2, float)
VECTORS(cublasDaxpy, cublasDscal, cublasDdot, cublasDnrm2, double)

Status cublasGemmEx(Handle handle, cublasOperation_t transa, cublasOperation_t transb, int m, int n, int k,
                    const void* alpha, const void* a, cudaDataType a_type, int lda, const void* b, cudaDataType b_type,
                    int ldb, const void* beta, void* c, cudaDataType c_type, int ldc, cublasComputeType_t compute,
                    cublasGemmAlgo_t) {
  return guarded(__func__, [&] {
    gemm_ex(handle, {transa, transb, m, n, k, lda, ldb, ldc}, alpha, a, a_type, b, b_type, beta, c, c_type, compute);
  });
}

}  // extern "C"
