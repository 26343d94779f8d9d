// SPDX-License-Identifier: Apache-2.0
#include "blas.hpp"

#if __has_include(<cblas.h>)
#include <cblas.h>
#else
#include <mkl_cblas.h>
#endif

namespace model {
namespace {

template <class T, class Gemm>
void multiply_by(Gemm gemm, Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const T* a,
                 const T* b, T keep, T* c) {
  if (rows == 0 || columns == 0) return;
  if (inner == 0) {  // BLAS libraries refuse a leading dimension of 0
    for (std::size_t i = 0; i < rows * columns; ++i) c[i] = keep == 0 ? T(0) : keep * c[i];
    return;
  }
  const auto size = [](std::size_t n) { return static_cast<int>(n); };
  const bool first = transpose == Transpose::first, second = transpose == Transpose::second;
  gemm(CblasRowMajor, first ? CblasTrans : CblasNoTrans, second ? CblasTrans : CblasNoTrans, size(rows), size(columns),
       size(inner), T(1), a, size(first ? rows : inner), b, size(second ? inner : columns), keep, c, size(columns));
}

}  // namespace

void multiply(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const float* a,
              const float* b, float keep, float* c) {
  multiply_by(cblas_sgemm, transpose, rows, columns, inner, a, b, keep, c);
}

void multiply(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const double* a,
              const double* b, double keep, double* c) {
  multiply_by(cblas_dgemm, transpose, rows, columns, inner, a, b, keep, c);
}

void use_one_blas_thread() {
#ifdef HAVE_OPENBLAS_SET_NUM_THREADS
  openblas_set_num_threads(1);
#endif
}

}  // namespace model
