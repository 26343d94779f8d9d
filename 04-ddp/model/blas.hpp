// blas.hpp: matrix products of row-major matrices by the BLAS that CMake found, for float and double.
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

// Call it before the first product. It does two things, for OpenBLAS only:
// - One thread: a rank is a thread, and ranks that each start one BLAS thread per core would fight for the cores. Other
//   libraries take it from their environment (OMP_NUM_THREADS, MKL_NUM_THREADS).
// - Kernels: OpenBLAS chooses them by the processor's model, and for a model newer than itself it takes those for AVX2.
//   If the processor has AVX-512, this takes those for AVX-512, which are up to twice as fast, as later versions of
//   OpenBLAS do. If the environment has OPENBLAS_CORETYPE, that choice stays.
void prepare_blas();

}  // namespace model
