// cuBLAS on emulated GPUs: products against sums in double, stream order, and the checks.
#include "cuda.hpp"

#include <cublas_v2.h>
#include <dlfcn.h>

#include <functional>
#include <limits>
#include <random>

namespace cublas_test {

#define EXPECT_BLAS(call) EXPECT_EQ(call, CUBLAS_STATUS_SUCCESS)

class Blas : public CudaTest {
 protected:
  Blas() {
    EXPECT_BLAS(cublasCreate(&handle_));
    EXPECT_BLAS(cublasSetStream(handle_, stream_));
  }
  ~Blas() override { EXPECT_BLAS(cublasDestroy(handle_)); }
  // The status, and that the reason is on stderr.
  static void expect_refused(const std::function<cublasStatus_t()>& call, cublasStatus_t status,
                             const std::string& why) {
    testing::internal::CaptureStderr();
    EXPECT_EQ(call(), status);
    EXPECT_SAYS(testing::internal::GetCapturedStderr(), why);
  }
  cublasHandle_t handle_{};
  const cudaStream_t stream_ = new_stream();
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
// these values are multiples of 2^-12, and float and double sums of so few of them are exact.
template <class T>
void expect_product(cublasHandle_t handle, cudaDataType type, cublasComputeType_t compute) {
  const int m = 37, n = 9, k = 300, ld = 303;
  const std::vector<T> a = numbers<T>(ld * ld, 1), b = numbers<T>(ld * ld, 2), c = numbers<T>(ld * n, 3);
  const Array<T> left(a), right(b);
  const T half = 0.5, two = 2;
  for (const bool at : {false, true})
    for (const bool bt : {false, true}) {
      const Array<T> sum(c);
      EXPECT_BLAS(cublasGemmEx(handle, at ? CUBLAS_OP_T : CUBLAS_OP_N, bt ? CUBLAS_OP_C : CUBLAS_OP_N, m, n, k, &half,
                               left, type, ld, right, type, ld, &two, sum, type, ld, compute, CUBLAS_GEMM_DEFAULT));
      std::vector<T> wanted = c;
      const auto at_index = [](const std::vector<T>& all, int i) { return all[static_cast<std::size_t>(i)]; };
      for (int j = 0; j < n; ++j)
        for (int i = 0; i < m; ++i) {
          T& value = wanted[static_cast<std::size_t>(j * ld + i)];
          value *= 2;
          for (int p = 0; p < k; ++p)
            value += half * at_index(a, at ? i * ld + p : p * ld + i) * at_index(b, bt ? p * ld + j : j * ld + p);
        }
      EXPECT_EQ(sum.get(), wanted) << "transposed: " << at << bt;
    }
}

TEST_F(Blas, ProductsOfFloatAndDouble) {
  expect_product<float>(handle_, CUDA_R_32F, CUBLAS_COMPUTE_32F);
  expect_product<double>(handle_, CUDA_R_64F, CUBLAS_COMPUTE_64F);
}

TEST_F(Blas, ProductsInABatchAndVectors) {
  const Array<float> a({1, 2, 3, 4}), x({5, 6, 7}), y({1, 1, 1});
  const float one = 1, none = 0;
  const auto batch = [&](int count) {
    return cublasSgemmStridedBatched(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &one, a, 1, 2, x, 1, 1, &none, y, 1, 2,
                                     count);
  };
  EXPECT_BLAS(batch(2));
  EXPECT_EQ(y.get(), (std::vector<float>{5, 1, 18}));
  expect_refused([&] { return batch(3); }, CUBLAS_STATUS_EXECUTION_FAILED, "A: it (4 bytes at ");
  EXPECT_BLAS(cublasSaxpy(handle_, 2, &one, x, -2, y, 1));
  EXPECT_EQ(y.get(), (std::vector<float>{12, 6, 18}));
  expect_refused([&] { return cublasSaxpy(handle_, 3, &one, x, 2, y, 1); }, CUBLAS_STATUS_EXECUTION_FAILED,
                 "x: it (20");
  const Array<float> matrix({1, 2, 3, 4, 5, 6}), sums({1, 1, 1});  // 2 rows, 3 columns
  EXPECT_BLAS(cublasSgemv(handle_, CUBLAS_OP_N, 2, 3, &one, matrix, 2, x, 1, &one, sums, 2));
  EXPECT_EQ(sums.get(), (std::vector<float>{59, 1, 77}));
  EXPECT_BLAS(cublasSgemv(handle_, CUBLAS_OP_T, 2, 3, &one, matrix, 2, x, 2, &none, sums, 1));
  EXPECT_EQ(sums.get(), (std::vector<float>{19, 43, 67}));
  float host[] = {0, 8, 0, 9};
  EXPECT_BLAS(cublasSetVector(2, 4, host + 1, 2, y, 1));
  EXPECT_EQ(y.get(), (std::vector<float>{8, 9, 18}));
  EXPECT_BLAS(cublasGetVectorAsync(2, 4, x, 2, host, 1, stream_));
  EXPECT_OK(cudaStreamSynchronize(stream_));
  EXPECT_EQ(host[1], 7);
}

TEST_F(Blas, ABetaOfZeroOverwritesNaN) {
  const Array<float> x({2}), y({std::numeric_limits<float>::quiet_NaN()});
  const float alpha = 3, beta = 0;
  EXPECT_BLAS(cublasSgemm(handle_, CUBLAS_OP_N, CUBLAS_OP_N, 1, 1, 1, &alpha, x, 1, x, 1, &beta, y, 1));
  EXPECT_EQ(y.get()[0], 12);
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
      CUBLAS_STATUS_NOT_SUPPORTED, "float and double only");
  expect_refused([&] { return cublasSetStream(nullptr, stream_); }, CUBLAS_STATUS_NOT_INITIALIZED, "never created");
  expect_refused([&] { return cublasSrotg(handle_, host, host, host, host); }, CUBLAS_STATUS_NOT_SUPPORTED,
                 "cublasSrotg_v2 is not emulated");
  for (const char* name : {"cublasXtCreate", "cublasDgetrfBatched", "cublasSgemm"})
    EXPECT_NE(dlsym(RTLD_DEFAULT, name), nullptr) << name << " is declared in a header of cuBLAS";
  EXPECT_OK(cudaSetDevice(1));
  const Array<float> other({1, 1, 1, 1});
  const cudaStream_t stream = new_stream();
  EXPECT_OK(cudaSetDevice(0));
  expect_refused(gemm(2, 2, 2, other, 2), CUBLAS_STATUS_EXECUTION_FAILED, "A: it is memory of device 1");
  expect_refused([&] { return cublasSetStream(handle_, stream); }, CUBLAS_STATUS_INVALID_VALUE,
                 "the stream is of device 1, the handle of device 0");
}

}  // namespace cublas_test
