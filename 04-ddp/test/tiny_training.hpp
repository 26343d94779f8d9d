// tiny_training.hpp: a line through 41 points, for tests of the Trainer: module and data in one.
#pragma once

#include "ddp/sampler.hpp"
#include "trainer/callbacks.hpp"
#include "trainer/trainer.hpp"

#include <functional>
#include <memory>
#include <string>
#include <vector>

inline constexpr std::size_t points = 41;
inline float x_of(std::uint32_t sample) { return static_cast<float>(sample) / points; }
inline float y_of(std::uint32_t sample) { return 2 * x_of(sample) + 1 + (sample % 3 == 0 ? 0.25f : 0.0f); }

class Line : public trainer::Module, public trainer::DataModule {
 public:
  static constexpr double rate = 0.02, momentum = 0.9;

  // `planted`: what "val_loss" shall be after each epoch, the last for all later ones; none: what it is.
  explicit Line(const multinode::World& world, std::size_t batch = 8, std::vector<double> planted = {})
      : train_(points, batch, world.rank(), world.size(), 1),
        test_(10, 6, world.rank(), world.size(), 1, ddp::Remainder::smaller, false),
        planted_(std::move(planted)) {}

  std::vector<ddp::NamedBlock> parameters() override {
    return {{"slope", {1}, std::span(slope_)}, {"offset", {1}, std::span(offset_)}};
  }
  std::unique_ptr<model::Optimizer<float>> configure_optimizer() override {
    return std::make_unique<model::Sgd<float>>(parameters(), momentum);
  }
  double learning_rate(std::size_t) override { return rate; }
  double training_step(const trainer::Batch& batch, std::size_t step, ddp::Reducer<float>& gradients) override {
    const std::span<float> slope = gradients.gradient(0), offset = gradients.gradient(1);
    if (!gradients.adds()) slope[0] = offset[0] = 0;
    double loss = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const float error = slope_[0] * batch.inputs[i] + offset_[0] - batch.targets[i];
      slope[0] += 2 * error * batch.inputs[i];
      offset[0] += 2 * error;
      loss += static_cast<double>(error * error);
    }
    gradients.mark_ready(1);
    gradients.mark_ready(0);
    return loss_in_step ? loss_in_step(step, loss) : loss;
  }
  trainer::Metrics validation_step(const trainer::Batch& batch) override {
    double loss = 0;
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const double error = double(slope_[0] * batch.inputs[i] + offset_[0] - batch.targets[i]);
      loss += error * error;
    }
    if (!planted_.empty()) loss = planted_[std::min(epoch_, planted_.size()) - 1] * double(batch.size());
    trainer::Metrics metrics{{"val_loss", loss}};
    if (!extra_metric.empty()) metrics[extra_metric] = 0;
    return metrics;
  }

  std::size_t training_batches() const override { return train_.steps(); }
  std::size_t training_samples(std::size_t batch) const override { return train_.global_batch(batch).size(); }
  void begin_epoch(std::size_t epoch, std::size_t) override {
    epoch_ = epoch;
    train_.set_epoch(static_cast<std::uint32_t>(epoch));
  }
  const trainer::Batch& training_batch(std::size_t batch) override { return fill(train_.local_batch(batch)); }
  std::size_t validation_batches() const override { return test_.steps(); }
  const trainer::Batch& validation_batch(std::size_t batch) override { return fill(test_.local_batch(batch)); }

  float slope() const { return slope_[0]; }
  float offset() const { return offset_[0]; }
  std::span<const std::uint32_t> global_batch(std::size_t batch) const { return train_.global_batch(batch); }

  std::function<double(std::size_t, double)> loss_in_step;  // another loss than the right one
  std::string extra_metric;

 private:
  const trainer::Batch& fill(std::span<const std::uint32_t> samples) {
    batch_.samples.assign(samples.begin(), samples.end());
    batch_.inputs.clear();
    batch_.targets.clear();
    for (const std::uint32_t sample : samples) {
      batch_.inputs.push_back(x_of(sample));
      batch_.targets.push_back(y_of(sample));
    }
    return batch_;
  }

  std::vector<float> slope_{0}, offset_{0};
  ddp::DistributedSampler train_, test_;
  std::vector<double> planted_;
  std::size_t epoch_ = 0;
  trainer::Batch batch_;
};

// Does one thing at one place.
class Doing : public trainer::Callback {
 public:
  std::function<void(trainer::Trainer&)> fit_begin, step_end, log, validation_end, epoch_end, fit_end;
  void on_fit_begin(trainer::Trainer& t) override { call(fit_begin, t); }
  void on_step_end(trainer::Trainer& t) override { call(step_end, t); }
  void on_log(trainer::Trainer& t) override { call(log, t); }
  void on_validation_end(trainer::Trainer& t) override { call(validation_end, t); }
  void on_epoch_end(trainer::Trainer& t) override { call(epoch_end, t); }
  void on_fit_end(trainer::Trainer& t) override { call(fit_end, t); }

 private:
  static void call(const std::function<void(trainer::Trainer&)>& what, trainer::Trainer& t) {
    if (what) what(t);
  }
};
