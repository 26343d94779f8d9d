// kernel_checks.hpp: what each kernel of the perceptron must do, computed in double, in another way. The input is other
// random numbers in every run, no size is a multiple of anything, and what is written to was full of NaN; so is what
// lies behind it, and stays so.
//
// Place offers device, a Device of device_perceptron.hpp; put(to, numbers) and get(from, count), which copy to and from
// its memory; and element, the type of what is multiplied.
#pragma once

#include "ddp/philox.hpp"
#include "model/device_perceptron.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

template <class Place>
class Kernels : public ::testing::Test {
 protected:
  using U = typename Place::element;

  void SetUp() override {
    if (const char* reason = Place::absent()) GTEST_SKIP() << reason;
    const std::uint32_t seed = std::random_device()();
    RecordProperty("seed", std::to_string(seed));
    std::cout << "seed " << seed << std::endl;
    random_.seed(seed);
    place_ = std::make_unique<Place>();
  }

  std::size_t size(std::size_t most = 3000) {
    const std::size_t some = 33 + random_() % (most - 33);
    return some | 1;  // odd
  }
  // Numbers that are the same as float and as U.
  template <class T>
  std::vector<T> numbers(std::size_t count, double low = -2, double high = 2) {
    std::uniform_real_distribution<double> distribution(low, high);
    std::vector<T> all(count);
    for (T& one : all)
      one = static_cast<T>(static_cast<float>(static_cast<U>(static_cast<float>(distribution(random_)))));
    return all;
  }

  // Memory of the device: with these numbers, or for `count` of them.
  template <class T>
  class Memory {
   public:
    Memory(Place& place, const std::vector<T>& all) : place_(place), buffer_(all.size() + 64), count_(all.size()) {
      poison();
      place_.put(buffer_.data(), all);
    }
    Memory(Place& place, std::size_t count) : place_(place), buffer_(count + 64), count_(count) { poison(); }
    T* data() { return buffer_.data(); }
    std::vector<T> get() {
      std::vector<T> all = place_.get(static_cast<const T*>(buffer_.data()), count_ + 64);
      std::vector<T> poisoned(64);
      std::memset(static_cast<void*>(poisoned.data()), 0xFF, 64 * sizeof(T));
      EXPECT_EQ(std::memcmp(all.data() + count_, poisoned.data(), 64 * sizeof(T)), 0) << "written behind the end";
      all.resize(count_);
      return all;
    }

   private:
    void poison() {
      std::vector<T> poison(count_ + 64);
      std::memset(static_cast<void*>(poison.data()), 0xFF, poison.size() * sizeof(T));
      place_.put(buffer_.data(), poison);
    }
    Place& place_;
    typename Place::Device::template Buffer<T> buffer_;
    std::size_t count_;
  };
  template <class T>
  Memory<T> memory(const std::vector<T>& all) {
    return {*place_, all};
  }
  template <class T>
  Memory<T> memory(std::size_t count) {
    return {*place_, count};
  }

  // A few roundings of T, relative to `scale`: the largest number that went into a result.
  template <class T>
  static void expect_near(T found, double wanted, double scale, std::size_t i, double roundings = 4) {
    const double epsilon = std::is_same_v<T, float> || std::is_same_v<T, double>
                               ? static_cast<double>(std::numeric_limits<T>::epsilon())
                               : 0x1p-8;
    double number = 0;
    if constexpr (std::is_same_v<T, double>)
      number = found;
    else
      number = static_cast<double>(static_cast<float>(found));
    ASSERT_LE(std::abs(number - wanted), roundings * epsilon * scale) << "element " << i << ": " << number;
  }

  model::StepSettings<float> settings(double dropout) {
    return model::settings_of<float>({dropout, random_(), static_cast<std::uint32_t>(random_())}, 0.0625);
  }

  std::mt19937 random_;
  std::unique_ptr<Place> place_;
};
TYPED_TEST_SUITE_P(Kernels);

TYPED_TEST_P(Kernels, Convert) {
  using U = typename TypeParam::element;
  const std::vector<float> from = this->template numbers<float>(this->size());
  auto in = this->memory(from);
  auto out = this->template memory<U>(from.size());
  this->place_->device.each(from.size(), model::Convert<float, U>{in.data(), out.data()});
  const std::vector<U> found = out.get();
  for (std::size_t i = 0; i < from.size(); ++i) EXPECT_EQ(static_cast<float>(found[i]), from[i]);
}

TYPED_TEST_P(Kernels, FinishHidden) {
  using U = typename TypeParam::element;
  for (const int kind : {0, 1, 2}) {
    const bool relu = kind > 0;
    const std::size_t batch = this->size(70), size = this->size(200);
    const std::vector<float> sums = this->template numbers<float>(batch * size),
                             bias = this->template numbers<float>(size);
    std::vector<std::uint32_t> samples(batch);
    for (std::uint32_t& sample : samples) sample = static_cast<std::uint32_t>(this->random_());
    const model::StepSettings<float> settings = this->settings(kind == 2 ? 0.3 : 0);
    constexpr std::uint32_t layer = 2;
    auto d_sums = this->memory(sums), d_bias = this->memory(bias);
    auto d_samples = this->memory(samples);
    auto d_settings = this->memory(std::vector{settings});
    auto units = this->template memory<U>(batch * size);
    this->place_->device.each(batch * model::FinishHidden<float, U>::fours(size),
                              model::FinishHidden<float, U>{d_sums.data(), d_bias.data(), units.data(), size, relu,
                                                            d_samples.data(), layer, d_settings.data()});
    const std::vector<U> found = units.get();
    std::size_t dropped = 0;
    for (std::size_t s = 0; s < batch; ++s)
      for (std::size_t j = 0; j < size; ++j) {
        const double sum = double{sums[s * size + j]} + double{bias[j]};
        double wanted = relu ? std::max(sum, 0.0) : sum;
        const std::uint32_t word =
            ddp::philox({static_cast<std::uint32_t>(j / 4), ddp::stream_dropout + layer, samples[s], settings.step},
                        settings.seed)[j % 4];
        const bool drop = kind == 2 && word < 0.3 * 0x1p32;
        dropped += drop;
        wanted = drop ? 0 : kind == 2 ? wanted / 0.7 : wanted;
        this->expect_near(found[s * size + j], wanted, 6, s * size + j);
      }
    EXPECT_EQ(dropped > 0, kind == 2);
  }
}

TYPED_TEST_P(Kernels, FinishOutputs) {
  using U = typename TypeParam::element;
  for (const auto loss : {model::Loss::cross_entropy, model::Loss::binary_cross_entropy, model::Loss::mean_square})
    for (const bool relu : {false, true}) {
      const std::size_t batch = this->size(70), size = this->size(100);
      const std::vector<float> sums = this->template numbers<float>(batch * size),
                               bias = this->template numbers<float>(size);
      std::vector<float> targets(batch * size);
      std::vector<std::uint8_t> labels(batch);
      for (float& target : targets) target = static_cast<float>(this->random_() % 2);
      for (std::uint8_t& label : labels) label = static_cast<std::uint8_t>(this->random_() % size);
      auto d_sums = this->memory(sums), d_bias = this->memory(bias), d_targets = this->memory(targets);
      auto d_labels = this->memory(labels);
      auto errors = this->template memory<U>(batch * size);
      auto losses = this->template memory<float>(batch);
      auto rights = this->template memory<std::uint8_t>(batch);
      this->place_->device.rows(
          batch, model::FinishOutputs<float, U>{loss, relu, size, d_sums.data(), d_bias.data(), d_targets.data(),
                                                d_labels.data(), errors.data(), losses.data(), rights.data()});
      const std::vector<U> found = errors.get();
      const std::vector<float> found_losses = losses.get(), found_sums = d_sums.get();
      const std::vector<std::uint8_t> found_rights = rights.get();
      for (std::size_t s = 0; s < batch; ++s) {
        std::vector<double> z(size), wanted(size);
        double sum_of_exponentials = 0, total = 0;
        bool right = loss != model::Loss::mean_square;
        for (std::size_t j = 0; j < size; ++j) {
          z[j] = double{sums[s * size + j]} + double{bias[j]};
          if (relu) z[j] = std::max(z[j], 0.0);
          this->expect_near(found_sums[s * size + j], z[j], 4, s * size + j);
          sum_of_exponentials += std::exp(z[j]);
        }
        double second = 1;  // how much is between the right answer and the others
        for (std::size_t j = 0; j < size; ++j) {
          const double t = targets[s * size + j];
          if (loss == model::Loss::cross_entropy) {
            wanted[j] = std::exp(z[j]) / sum_of_exponentials - (j == labels[s]);
            if (j == labels[s]) total = std::log(sum_of_exponentials) - z[j];
            if (j != labels[s]) second = std::min(second, std::abs(z[j] - z[labels[s]]));
            right = right && z[j] <= z[labels[s]];
          } else if (loss == model::Loss::binary_cross_entropy) {
            wanted[j] = 1 / (1 + std::exp(-z[j])) - t;
            total += std::log(1 + std::exp(z[j])) - t * z[j];
            second = std::min(second, std::abs(z[j]));
            right = right && (z[j] > 0) == (t > 0.5);
          } else {
            wanted[j] = 2 * (z[j] - t) / static_cast<double>(size);
            total += (z[j] - t) * (z[j] - t) / static_cast<double>(size);
          }
          const bool near_the_edge = relu && std::abs(double{sums[s * size + j]} + double{bias[j]}) < 1e-5;
          if (relu && !(z[j] > 0)) wanted[j] = 0;
          if (!near_the_edge) this->expect_near(found[s * size + j], wanted[j], 1, s * size + j, 16);
        }
        // As many roundings as there are terms, of the largest sum.
        this->expect_near(found_losses[s], total, total + 4, s, static_cast<double>(size));
        if (second > 1e-5) {
          EXPECT_EQ(found_rights[s] != 0, right) << "sample " << s;
        }
      }
    }
}

TYPED_TEST_P(Kernels, AddUp) {
  const std::size_t batch = this->size();
  const std::vector<float> losses = this->template numbers<float>(batch, 0, 3);
  std::vector<std::uint8_t> rights(batch);
  for (std::uint8_t& one : rights) one = this->random_() % 2;
  auto d_losses = this->memory(losses);
  auto d_rights = this->memory(rights);
  model::StepSettings<float> settings;
  settings.step = 17;
  auto d_settings = this->memory(std::vector{settings});
  auto totals = this->memory(std::vector<model::Totals>{{1.5, 3, 0}});
  for (int pass = 0; pass < 2; ++pass)
    this->place_->device.rows(
        1, model::AddUp<float>{batch, d_losses.data(), d_rights.data(), d_settings.data(), totals.data()});
  double loss = 0;
  std::uint64_t right = 0;
  for (std::size_t s = 0; s < batch; ++s) loss += losses[s], right += rights[s];
  const model::Totals found = totals.get()[0];
  this->expect_near(found.loss, 1.5 + 2 * loss, loss, 0, static_cast<double>(batch));
  EXPECT_EQ(found.right, 3 + 2 * right);
  EXPECT_EQ(found.bad_step, 0u);
}

TYPED_TEST_P(Kernels, FillAndScale) {
  const std::size_t count = this->size();
  const float value = this->template numbers<float>(1)[0];
  auto elements = this->template memory<float>(count);
  this->place_->device.each(count, model::Fill<float>{elements.data(), value});
  this->place_->device.each(count / 2, model::Scale<float>{elements.data(), 0.3f});
  const std::vector<float> found = elements.get();
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(found[i], i < count / 2 ? value * 0.3f : value);
}

TYPED_TEST_P(Kernels, ThroughHidden) {
  using U = typename TypeParam::element;
  for (const bool relu : {false, true}) {
    const std::size_t count = this->size();
    const std::vector<float> unit_errors = this->template numbers<float>(count);
    const std::vector<U> units = this->template numbers<U>(count);
    const model::StepSettings<float> settings = this->settings(0.2);
    auto d_unit_errors = this->memory(unit_errors);
    auto d_units = this->memory(units);
    auto d_settings = this->memory(std::vector{settings});
    auto errors = this->template memory<U>(count);
    this->place_->device.each(count, model::ThroughHidden<float, U>{d_unit_errors.data(), d_units.data(), errors.data(),
                                                                    relu, d_settings.data()});
    const std::vector<U> found = errors.get();
    for (std::size_t i = 0; i < count; ++i)
      this->expect_near(found[i], !relu || static_cast<float>(units[i]) > 0 ? unit_errors[i] / 0.8 : 0, 2.5, i);
  }
}

TYPED_TEST_P(Kernels, Descend) {
  using U = typename TypeParam::element;
  const std::size_t count = this->size();
  const std::vector<float> parameter = this->template numbers<float>(count),
                           velocity = this->template numbers<float>(count),
                           gradient = this->template numbers<float>(count);
  const model::StepSettings<float> settings = this->settings(0);
  auto d_parameter = this->memory(parameter), d_velocity = this->memory(velocity), d_gradient = this->memory(gradient);
  auto d_settings = this->memory(std::vector{settings});
  auto copy = this->template memory<U>(count);
  this->place_->device.each(count, model::Descend<float, U>{d_parameter.data(), d_velocity.data(), d_gradient.data(),
                                                            copy.data(), 0.9f, 0.01f, d_settings.data()});
  const std::vector<float> parameters = d_parameter.get(), velocities = d_velocity.get();
  const std::vector<U> copies = copy.get();
  for (std::size_t i = 0; i < count; ++i) {
    const double wanted = 0.9 * velocity[i] + double{gradient[i]} + 0.01 * parameter[i];
    this->expect_near(velocities[i], wanted, 4, i);
    this->expect_near(parameters[i], parameter[i] - 0.0625 * wanted, 4, i);
    EXPECT_EQ(static_cast<float>(copies[i]), static_cast<float>(static_cast<U>(parameters[i])));
  }
}

TYPED_TEST_P(Kernels, DescendByAdam) {
  using U = typename TypeParam::element;
  const std::size_t count = this->size();
  const std::vector<float> parameter = this->template numbers<float>(count),
                           mean = this->template numbers<float>(count),
                           square = this->template numbers<float>(count, 0.1, 2),
                           gradient = this->template numbers<float>(count);
  const model::StepSettings<float> settings = this->settings(0);
  auto d_parameter = this->memory(parameter), d_mean = this->memory(mean), d_square = this->memory(square),
       d_gradient = this->memory(gradient);
  auto d_settings = this->memory(std::vector{settings});
  auto steps = this->memory(std::vector<double>{6});
  auto factors = this->template memory<model::AdamFactors<float>>(1);
  auto copy = this->template memory<U>(count);
  this->place_->device.each(1, model::CountAdamStep<float>{steps.data(), factors.data(), d_settings.data()});
  this->place_->device.each(count, model::DescendByAdam<float, U>{d_parameter.data(), d_mean.data(), d_square.data(),
                                                                  d_gradient.data(), copy.data(), factors.data()});
  EXPECT_EQ(steps.get()[0], 7);
  const std::vector<float> parameters = d_parameter.get(), means = d_mean.get(), squares = d_square.get();
  const std::vector<U> copies = copy.get();
  for (std::size_t i = 0; i < count; ++i) {
    const double g = gradient[i], m = 0.9 * mean[i] + 0.1 * g, v = 0.999 * square[i] + 0.001 * g * g;
    const double wanted =
        parameter[i] - 0.0625 * m / (1 - std::pow(0.9, 7)) / (std::sqrt(v / (1 - std::pow(0.999, 7))) + 1e-8);
    this->expect_near(means[i], m, 4, i);
    this->expect_near(squares[i], v, 4, i);
    this->expect_near(parameters[i], wanted, 4, i);
    EXPECT_EQ(static_cast<float>(copies[i]), static_cast<float>(static_cast<U>(parameters[i])));
  }
}

REGISTER_TYPED_TEST_SUITE_P(Kernels, Convert, FinishHidden, FinishOutputs, AddUp, FillAndScale, ThroughHidden, Descend,
                            DescendByAdam);
