// cpu.hpp: the Device of perceptron.hpp that is this host: one thread, loops for the compiler to vectorise, and BLAS.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "arithmetic.hpp"
#include "blas.hpp"

#include <multinode/communicator.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace model {

class Cpu {
 public:
  static constexpr bool on_gpu = false;
  static constexpr std::size_t width = 128;  // one by one, random numbers would take longer than all else in a layer

  Cpu() { use_one_blas_thread(); }
  Cpu(const Cpu&) = delete;
  Cpu& operator=(const Cpu&) = delete;

  template <class T>
  class Buffer {
   public:
    explicit Buffer(std::size_t count) : elements_(count) {}
    T* data() { return elements_.data(); }
    std::size_t size() const { return elements_.size(); }
    std::span<T> span() { return elements_; }

   private:
    std::vector<T> elements_;
  };

  // Is the caller's memory.
  template <class T>
  class Input {
   public:
    explicit Input(std::size_t /* capacity */) {}
    const T* data() const { return elements_; }
    void load(Cpu&, std::span<const T> elements) { elements_ = elements.data(); }

   private:
    const T* elements_ = nullptr;
  };

  template <class Op>
  void each(std::size_t count, Op op) {
#pragma GCC ivdep
    for (std::size_t i = 0; i < count; ++i) op(i);
  }
  template <class Op>
  void rows(std::size_t count, Op op) {
    for (std::size_t i = 0; i < count; ++i) op(i, OneLane());
  }
  template <class T>
  void product(Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const T* a, const T* b,
               T keep, T* c) {
    multiply(transpose, rows, columns, inner, a, b, keep, c);
  }
  template <class T>
  void column_sums(std::size_t rows, std::size_t columns, const T* /* ones */, const T* a, T keep, T* sums) {
    if (keep == 0) std::fill_n(sums, columns, T(0));
    for (std::size_t row = 0; row < rows; ++row)
      for (std::size_t j = 0; j < columns; ++j) sums[j] += a[row * columns + j];
  }

  template <class T>
  void copy(std::span<const T> from, T* to) {
    std::ranges::copy(from, to);
  }
  void wait() {}

  void attach(multinode::World&, multinode::Communicator&) {}
  void sum(multinode::Communicator& communicator, std::span<double> numbers) { communicator.all_reduce(numbers); }
};

}  // namespace model
