// blas.hpp: matrix products of row-major matrices by the BLAS that CMake found, for float and double.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace model {

enum class Transpose { none, first, second };

// c (rows x columns) = op(a) op(b) + keep c, where op(a) is rows x inner and op(b) inner x columns. With inner = 0:
// c = keep c.
void multiply(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const float* a,
              const float* b, float keep, float* c);
void multiply(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const double* a,
              const double* b, double keep, double* c);

// A rank is a thread: ranks that each start one BLAS thread a core would fight for the cores. OpenBLAS only; other
// libraries take it from their environment (OMP_NUM_THREADS, MKL_NUM_THREADS).
void use_one_blas_thread();

}  // namespace model
