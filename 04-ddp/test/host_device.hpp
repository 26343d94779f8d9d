// host_device.hpp: the Device of device_perceptron.hpp, on this host.
#pragma once

#include "model/device_perceptron.hpp"

#include <algorithm>
#include <barrier>
#include <cstddef>
#include <numeric>
#include <span>
#include <thread>
#include <vector>

// A thread that shares rows with others, as a warp's lanes do.
class Lane {
 public:
  struct Group {
    std::barrier<> barrier;
    std::vector<double> values;
    explicit Group(std::size_t lanes) : barrier(static_cast<std::ptrdiff_t>(lanes)), values(lanes) {}
  };
  Lane(Group& group, std::size_t number) : group_(group), number_(number) {}
  std::size_t first() const { return number_; }
  std::size_t count() const { return group_.values.size(); }
  template <class T>
  T sum(T value) {
    return static_cast<T>(together(value, [](double a, double b) { return a + b; }));
  }
  template <class T>
  T largest(T value) {
    return static_cast<T>(together(value, [](double a, double b) { return std::max(a, b); }));
  }
  bool all(bool value) { return sum(value ? 0 : 1) == 0; }

 private:
  template <class Combine>
  double together(double value, Combine combine) {
    group_.values[number_] = value;
    group_.barrier.arrive_and_wait();
    const double result =
        std::accumulate(group_.values.begin() + 1, group_.values.end(), group_.values.front(), combine);
    group_.barrier.arrive_and_wait();  // before the next value
    return result;
  }
  Group& group_;
  std::size_t number_;
};

template <std::size_t lanes>
struct [[gnu::visibility("hidden")]] Host {  // as bfloat16 is
  explicit Host(bool /* tf32 */) {}
  template <class T>
  class Buffer {
   public:
    explicit Buffer(std::size_t count) : elements_(count) {}
    T* data() { return elements_.data(); }
    const T* data() const { return elements_.data(); }
    std::size_t size() const { return elements_.size(); }
    std::span<T> span() { return elements_; }

   private:
    std::vector<T> elements_;
  };

  template <class Op>
  void each(std::size_t count, Op op) {
    for (std::size_t i = count; i-- > 0;) op(i);  // the order must not matter
  }
  template <class Op>
  void rows(std::size_t count, Op op) {
    if constexpr (lanes == 1) {
      for (std::size_t i = count; i-- > 0;) op(i, model::OneLane());
    } else {
      Lane::Group group(lanes);
      std::vector<std::jthread> threads;
      for (std::size_t lane = 0; lane < lanes; ++lane)
        threads.emplace_back([&group, lane, count, op] {
          for (std::size_t i = count; i-- > 0;) op(i, Lane(group, lane));
        });
    }
  }
  template <class T, class U>
  void product(model::Transpose transpose, std::size_t rows, std::size_t columns, std::size_t inner, const U* a,
               const U* b, T keep, T* c) {
    for (std::size_t i = 0; i < rows; ++i)
      for (std::size_t j = 0; j < columns; ++j) {
        T sum = 0;
        for (std::size_t k = 0; k < inner; ++k)
          sum += static_cast<T>(a[transpose == model::Transpose::first ? k * rows + i : i * inner + k]) *
                 static_cast<T>(b[transpose == model::Transpose::second ? j * inner + k : k * columns + j]);
        c[i * columns + j] = keep == 0 ? sum : keep * c[i * columns + j] + sum;
      }
  }
};
