// cuBLAS on emulated GPUs: products against sums in double, stream order, and the checks.
#include "cuda.hpp"

#include <cublas_v2.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <dlfcn.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace cublas_test {

const int two_devices = setenv("EMULATED_GPUS", "2", 0);

#define EXPECT_BLAS(call) EXPECT_EQ(call, CUBLAS_STATUS_SUCCESS)

class Blas : public ::testing::Test {
 protected:
  Blas() {
    EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
    EXPECT_BLAS(cublasCreate(&handle_));
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    EXPECT_BLAS(cublasSetStream(handle_, stream_));
  }
  ~Blas() override {
    EXPECT_BLAS(cublasDestroy(handle_));
    EXPECT_EQ(cudaStreamDestroy(stream_), cudaSuccess);
  }
  // The status, and that the reason is on stderr.
  static void expect_refused(const std::function<cublasStatus_t()>& call, cublasStatus_t status,
                             const std::string& why) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(call(), status);
    EXPECT_SAYS(testing::internal::GetCapturedStderr(), why);
  }
  cublasHandle_t handle_{};
  cudaStream_t stream_{};
};

// Random values of 1/64 from -1 to 1, which all types hold exactly.
template <class T>
std::vector<T> numbers(int count, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(T(static_cast<float>(static_cast<int>(random() % 129) - 64) / 64));
  return values;
}

// All four transpositions of a product of m x n x k with leading dimensions that are larger than the rows. Products of
// these values are multiples of 2^-12, and float and double sums of so few of them are exact: the limit is `limit`.
template <class In, class Out>
void expect_product(cublasHandle_t handle, cudaDataType in, cudaDataType out, cublasComputeType_t compute,
                    float limit) {
  const int m = 37, n = 9, k = 300, ld = 303;
  const std::vector<In> a = numbers<In>(ld * ld, 1), b = numbers<In>(ld * ld, 2);
  const std::vector<Out> c = numbers<Out>(ld * n, 3);
  const Array<In> left(a), right(b);
  const auto scale = [&](double value) {  // in the type that goes with the compute type
    std::vector<char> bytes(sizeof(double));
    const auto number = static_cast<float>(value);
    const auto half = __float2half(number);
    if (compute == CUBLAS_COMPUTE_64F)
      std::memcpy(bytes.data(), &value, sizeof value);
    else if (compute == CUBLAS_COMPUTE_16F)
      std::memcpy(bytes.data(), &half, sizeof half);
    else
      std::memcpy(bytes.data(), &number, sizeof number);
    return bytes;
  };
  for (const bool at : {false, true})
    for (const bool bt : {false, true}) {
      const Array<Out> sum(c);
      EXPECT_BLAS(cublasGemmEx(handle, at ? CUBLAS_OP_T : CUBLAS_OP_N, bt ? CUBLAS_OP_C : CUBLAS_OP_N, m, n, k,
                               scale(0.5).data(), left, in, ld, right, in, ld, scale(2).data(), sum, out, ld, compute,
                               CUBLAS_GEMM_DEFAULT));
      const std::vector<Out> got = sum.get();
      const auto number = [](const auto& all, int i) { return static_cast<double>(all[static_cast<std::size_t>(i)]); };
      double worst = 0;
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < ld; ++i) {
          double wanted = number(c, j * ld + i);
          if (i < m) {
            wanted *= 2;
            for (int p = 0; p < k; ++p)
              wanted += 0.5 * number(a, at ? i * ld + p : p * ld + i) * number(b, bt ? p * ld + j : j * ld + p);
          }
          worst = std::max(worst, std::abs(number(got, j * ld + i) - wanted));
        }
      EXPECT_LE(worst, limit) << "transposed: " << at << bt;
    }
}

TEST_F(Blas, ProductsInAllTypes) {
  expect_product<float, float>(handle_, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 0);
  expect_product<float, float>(handle_, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F_FAST_TF32, 0);
  expect_product<double, double>(handle_, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F, 0);
  expect_product<__half, float>(handle_, CUDA_R_16F, CUDA_R_32F, CUBLAS_COMPUTE_32F, 0);
  expect_product<__nv_bfloat16, float>(handle_, CUDA_R_16BF, CUDA_R_32F, CUBLAS_COMPUTE_32F, 0);
  // Results below 16 are rounded to 11 or 8 bits once; sums of halves 300 times.
  expect_product<__half, __half>(handle_, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_32F, 0x1p-8F);
  expect_product<__nv_bfloat16, __nv_bfloat16>(handle_, CUDA_R_16BF, CUDA_R_16BF, CUBLAS_COMPUTE_32F, 0x1p-5F);
  expect_product<__half, __half>(handle_, CUDA_R_16F, CUDA_R_16F, CUBLAS_COMPUTE_16F, 300 * 0x1p-8F);
}

TEST_F(Blas, Tf32RoundsTheFactorsAndFloatDoesNot) {
  const Array<float> x({1 + 0x1p-12F}), one({1}), y({0});
  const float alpha = 1, beta = 0;
  for (const auto& [mode, wanted] :
       {std::pair(CUBLAS_DEFAULT_MATH, 1 + 0x1p-12F), {CUBLAS_TF32_TENSOR_OP_MATH, 1.0F}}) {
    EXPECT_BLAS(cublasSetMathMode(handle_, mode));
    EXPECT_BLAS(cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, x, 1, one, 1, &beta, y, 1));
    EXPECT_EQ(y.get()[0], wanted);
  }
}

TEST_F(Blas, SumsOfHalvesAreRoundedEachTime) {
  const Array<__half> x({__half(2048.0F), __half(1.0F), __half(1.0F)}), one({__half(1.0F), __half(1.0F), __half(1.0F)}),
      y({__half(0.0F)});
  const __half alpha = 1.0F, beta = 0.0F;
  EXPECT_BLAS(cublasHgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 3, &alpha, x, 1, one, 3, &beta, y, 1));
  EXPECT_EQ(__half2float(y.get()[0]), 2048) << "2048 + 1 is 2048 in 11 bits";
  const float wide = 1, zero = 0;
  EXPECT_BLAS(cublasGemmEx(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 3, &wide, x, CUDA_R_16F, 1, one, CUDA_R_16F, 3,
                           &zero, y, CUDA_R_16F, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
  EXPECT_EQ(__half2float(y.get()[0]), 2050);
}

TEST_F(Blas, ABetaOfZeroOverwritesNaN) {
  const Array<float> x({2}), y({std::numeric_limits<float>::quiet_NaN()});
  const float alpha = 3, beta = 0;
  EXPECT_BLAS(cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, x, 1, x, 1, &beta, y, 1));
  EXPECT_EQ(y.get()[0], 12);
}

TEST_F(Blas, VectorsWithStepsAndResultsAtHostAndDevice) {
  const Array<double> x({1, -1, 2, -1, 3}), y({10, 20, 30}), result({0});
  const double two = 2;
  EXPECT_BLAS(cublasDaxpy(handle_, 3, &two, x, 2, y, -1));
  EXPECT_EQ(y.get(), (std::vector<double>{16, 24, 32}));
  double value = 0;
  EXPECT_BLAS(cublasDdot(handle_, 3, x, 2, y, 1, &value));
  EXPECT_EQ(value, 16 + 48 + 96);
  EXPECT_BLAS(cublasDnrm2(handle_, 2, x + 2, 2, &value));
  EXPECT_DOUBLE_EQ(value, std::sqrt(13));
  EXPECT_BLAS(cublasSetPointerMode(handle_, CUBLAS_POINTER_MODE_DEVICE));
  EXPECT_BLAS(cublasDnrm2(handle_, 5, x, 1, result));
  EXPECT_BLAS(cublasDscal(handle_, 3, result, y, 1));  // by a number that is known when the stream comes to it
  EXPECT_EQ(y.get(), (std::vector<double>{4 * 16, 4 * 24, 4 * 32}));
}

TEST_F(Blas, AGraphRepeatsAProduct) {
  const Array<float> x({2}), y({1});
  const float alpha = 1, beta = 1;
  cudaGraph_t graph{};
  cudaGraphExec_t executable{};
  EXPECT_EQ(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  EXPECT_BLAS(cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, x, 1, x, 1, &beta, y, 1));
  EXPECT_EQ(cudaStreamEndCapture(stream_, &graph), cudaSuccess);
  EXPECT_EQ(cudaGraphInstantiateWithFlags(&executable, graph, 0), cudaSuccess);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaGraphLaunch(executable, stream_), cudaSuccess);
  EXPECT_EQ(y.get()[0], 13);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

TEST_F(Blas, MistakesAreRefusedWithTheReason) {
  const Array<float> x(std::vector<float>(6, 1));
  const float alpha = 1, beta = 0;
  float host[6] = {};
  const auto gemm = [&](int m, int n, int k, const float* a, int lda) {
    return [=, &alpha, &beta, &x, this] {
      return cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, m, n, k, &alpha, a, lda, x, 2, &beta, x, 2);
    };
  };
  expect_refused(gemm(-1, 1, 1, x, 1), CUBLAS_STATUS_INVALID_VALUE, "cublasSgemm_v2: m is negative: -1");
  expect_refused(gemm(2, 1, 1, x, 1), CUBLAS_STATUS_INVALID_VALUE, "lda is 1 and must be at least 2");
  expect_refused(gemm(2, 2, 2, host, 2), CUBLAS_STATUS_EXECUTION_FAILED, "A: it (16 bytes at ");
  expect_refused(gemm(2, 4, 2, x, 2), CUBLAS_STATUS_EXECUTION_FAILED, "B: it (32 bytes at ");
  expect_refused(
      [&] {
        return cublasGemmEx(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, x, CUDA_R_32F, 1, x, CUDA_R_16F, 1,
                            &beta, x, CUDA_R_32F, 1, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
      },
      CUBLAS_STATUS_NOT_SUPPORTED, "has no such product");
  expect_refused([&] { return cublasSetStream(nullptr, stream_); }, CUBLAS_STATUS_NOT_INITIALIZED, "never created");
  expect_refused([&] { return cublasSrotg(handle_, host, host, host, host); }, CUBLAS_STATUS_NOT_SUPPORTED,
                 "cublasSrotg_v2 is not emulated");
  for (const char* name : {"cublasXtCreate", "cublasDgetrfBatched", "cublasSgemm"})
    EXPECT_NE(dlsym(RTLD_DEFAULT, name), nullptr) << name << " is declared in a header of cuBLAS";
  EXPECT_EQ(cudaSetDevice(1), cudaSuccess);
  const Array<float> other({1, 1, 1, 1});
  cudaStream_t stream{};
  EXPECT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  expect_refused(gemm(2, 2, 2, other, 2), CUBLAS_STATUS_EXECUTION_FAILED, "A: it is memory of device 1");
  expect_refused([&] { return cublasSetStream(handle_, stream); }, CUBLAS_STATUS_INVALID_VALUE,
                 "the stream is of device 1, the handle of device 0");
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace cublas_test
