// trainer.hpp: the loop of a training, as PyTorch Lightning takes it out of the user's hands. A Module says what is
// trained, Callbacks what else is done, and the Trainer does it on all ranks.
//
// Everything here is collective: all ranks make the same objects with the same options and the same calls. An exception
// on one rank leaves fit() there, and in multinode::run() ends all ranks.
#pragma once

#include "ddp/checkpoint.hpp"

#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace trainer {

using Metrics = std::map<std::string, double>;  // by name: "val_loss"

struct Sums {
  double loss = 0, samples = 0;
  void add(const Sums& other) { loss += other.loss, samples += other.samples; }
};

class Module {
 public:
  virtual ~Module() = default;
  // What a checkpoint holds: parameters and the optimizer's state, in host memory, as they are now.
  virtual const std::vector<ddp::NamedBlock>& state() = 0;
  // Gives all ranks the state of the first whole one of rank 0's checkpoints, as ddp::load_checkpoint() does.
  virtual ddp::Restored restore(const std::vector<std::filesystem::path>& newest_first,
                                const nlohmann::json& hyperparameters) = 0;
  virtual std::size_t steps() const = 0;  // of an epoch
  // training_step(first), (first + 1) ... of this epoch, which is counted from 1, come next. What they do is a function
  // of epoch and step, so that a training can resume in the middle of an epoch.
  virtual void begin_epoch(std::size_t epoch, std::size_t first) = 0;
  virtual void training_step(std::size_t step) = 0;  // forward, backward, reduction, update: see train_step.hpp
  virtual Sums take_losses() = 0;                    // of all ranks, since the last call
  virtual Metrics validate() = 0;                    // the same bits on all ranks
};

class Trainer;

// Called on all ranks, in the order of TrainerOptions::callbacks.
class Callback {
 public:
  virtual ~Callback() = default;
  virtual void on_fit_begin(Trainer&) {}
  virtual void on_log(Trainer&) {}             // there is a new "train_loss_step", the mean since the last log
  virtual void on_validation_end(Trainer&) {}  // new "train_loss_epoch", and what Module::validate() returned
  virtual void on_epoch_end(Trainer&) {}       // after that, unless max_steps ended the epoch early
  virtual void on_step_end(Trainer&) {}        // after all of these
  virtual void on_fit_end(Trainer&) {}
  // What a checkpoint holds of it, under a name that no other callback has. Empty: nothing.
  virtual std::string name() const { return ""; }
  virtual nlohmann::json state() const { return {}; }
  virtual void load_state(Trainer&, const nlohmann::json&) {}
};

struct TrainerOptions {
  std::size_t max_epochs = 1;
  std::size_t max_steps = std::numeric_limits<std::size_t>::max();  // of all epochs; also in the middle of one
  std::size_t log_every = 50;           // steps of an epoch; the last of an epoch always logs
  nlohmann::json hyperparameters = {};  // what a resumed training cannot change, by name: {"--seed", 1}
  std::vector<Callback*> callbacks = {};
};

class Trainer {
 public:
  explicit Trainer(TrainerOptions options) : options_(std::move(options)) {}

  // Trains until max_epochs, max_steps or stop(). Resumes from the first whole one of rank 0's `checkpoints`: on the
  // same number of ranks the parameters become the same, bit for bit.
  void fit(Module& module, const std::vector<std::filesystem::path>& checkpoints = {}) {
    module_ = &module;
    load(checkpoints);
    call(&Callback::on_fit_begin);
    while (!done()) {
      const std::size_t first = epochs_ * module.steps(), end = std::min(first + module.steps(), options_.max_steps);
      const auto start = std::chrono::steady_clock::now();
      const double before = epoch_.samples + line_.samples;
      module.begin_epoch(epochs_ + 1, step_ - first);
      while (step_ < end) {
        module.training_step(step_ - first);
        ++step_;
        if ((step_ - first) % options_.log_every == 0 || step_ == end) log();
        if (step_ < end) call(&Callback::on_step_end);
      }
      seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      samples_ = epoch_.samples - before;
      metrics_["train_loss_epoch"] = epoch_.loss / epoch_.samples;
      for (const auto& [name, value] : module.validate()) metrics_[name] = value;
      call(&Callback::on_validation_end);
      if (end - first == module.steps()) {
        ++epochs_;
        epoch_ = {};
        call(&Callback::on_epoch_end);
      }
      call(&Callback::on_step_end);
    }
    call(&Callback::on_fit_end);
  }

  // On all ranks, because of what is the same on all of them: fit() ends after this epoch.
  void stop(const std::string& reason) { stopped_ = reason; }
  bool done() const { return !stopped_.empty() || epochs_ >= options_.max_epochs || step_ >= options_.max_steps; }

  std::size_t step() const { return step_; }      // steps so far, of all epochs
  std::size_t epochs() const { return epochs_; }  // complete ones
  std::size_t steps_of_epoch() const { return module_->steps(); }
  double seconds() const { return seconds_; }              // that this run trained in the epoch, without validation
  double samples() const { return samples_; }              // of all ranks, in that time
  const Metrics& metrics() const { return metrics_; }      // the same bits on all ranks
  const std::string& stopped() const { return stopped_; }  // why; empty: it has not
  const std::filesystem::path& resumed() const { return resumed_; }
  double metric(const std::string& name) const { return metrics_.at(name); }

  const std::vector<ddp::NamedBlock>& blocks() const { return module_->state(); }
  nlohmann::json state() {  // with blocks() the whole state of the training
    line_.add(module_->take_losses());
    nlohmann::json callbacks = nlohmann::json::object();
    for (const Callback* callback : options_.callbacks) callbacks[callback->name()] = callback->state();
    nlohmann::json state = options_.hyperparameters;
    state["trainer"] = {{"epochs", epochs_},
                        {"step", step_},
                        {"epoch", {epoch_.loss, epoch_.samples}},
                        {"line", {line_.loss, line_.samples}},
                        {"callbacks", std::move(callbacks)}};
    return state;
  }

 private:
  void call(void (Callback::*hook)(Trainer&)) {
    for (Callback* callback : options_.callbacks) (callback->*hook)(*this);
  }

  void log() {
    line_.add(module_->take_losses());
    metrics_["train_loss_step"] = line_.loss / line_.samples;
    epoch_.add(line_);
    line_ = {};
    call(&Callback::on_log);
  }

  void load(const std::vector<std::filesystem::path>& checkpoints) {
    ddp::Restored restored = module_->restore(checkpoints, options_.hyperparameters);
    resumed_ = std::move(restored.path);
    if (restored.state.is_null()) return;
    const nlohmann::json& state = restored.state.at("trainer");
    epochs_ = state.at("epochs");
    step_ = state.at("step");
    epoch_ = {state.at("epoch").at(0), state.at("epoch").at(1)};
    line_ = {state.at("line").at(0), state.at("line").at(1)};
    for (Callback* callback : options_.callbacks)
      if (const auto saved = state.at("callbacks").find(callback->name()); saved != state.at("callbacks").end())
        callback->load_state(*this, *saved);
  }

  TrainerOptions options_;
  Module* module_ = nullptr;
  std::size_t epochs_ = 0, step_ = 0;  // complete epochs; steps of all
  Sums epoch_, line_;                  // of all ranks: of the epoch up to the last log; since then
  double seconds_ = 0, samples_ = 0;
  Metrics metrics_;
  std::string stopped_;
  std::filesystem::path resumed_;
};

// Stops the training when a metric has not been better, larger or smaller than before and finite, for `patience`
// epochs.
class EarlyStopping : public Callback {
 public:
  EarlyStopping(std::string monitor, bool largest, std::size_t patience)
      : monitor_(std::move(monitor)), largest_(largest), patience_(patience) {}
  bool improved() const { return without_ == 0; }  // in the last epoch
  void on_epoch_end(Trainer& trainer) override {
    const double next = trainer.metric(monitor_);
    const bool better = std::isfinite(next) && (!best_ || (largest_ ? next > *best_ : next < *best_));
    if (better) best_ = next;
    without_ = better ? 0 : without_ + 1;
    stop_if_due(trainer);
  }
  std::string name() const override { return "early stopping"; }
  nlohmann::json state() const override {
    return {{"best", best_ ? nlohmann::json(*best_) : nlohmann::json()}, {"without", without_}};
  }
  void load_state(Trainer& trainer, const nlohmann::json& state) override {
    if (!state.at("best").is_null()) best_ = state.at("best").get<double>();
    state.at("without").get_to(without_);
    stop_if_due(trainer);
  }

 private:
  void stop_if_due(Trainer& trainer) const {
    if (without_ >= patience_)
      trainer.stop(monitor_ + " has not been better for " + std::to_string(without_) + " epochs");
  }
  std::string monitor_;
  bool largest_;
  std::optional<double> best_;
  std::size_t patience_, without_ = 0;  // epochs without an improvement
};

// Writes the newest two checkpoints, and best.checkpoint after an epoch in which `best` improved. Rank 0 writes, and
// alone needs the folder. The last of the callbacks: a checkpoint holds the state of those before.
class ModelCheckpoint : public Callback {
 public:
  // Every so many steps (0: every epoch), at the end, and whenever `asked` is true, on all ranks, for a step.
  ModelCheckpoint(multinode::World& world, std::filesystem::path folder, std::size_t every_steps = 0,
                  const EarlyStopping* best = nullptr, std::function<bool(std::size_t step)> asked = {})
      : path_(std::move(folder)), every_steps_(every_steps), best_(best), asked_(std::move(asked)) {
    if (world.rank() == 0) folder_.emplace(path_, 2, &world.watchdog());
  }
  std::vector<std::filesystem::path> newest() const {
    return folder_ ? folder_->newest_first() : std::vector<std::filesystem::path>();
  }
  void on_epoch_end(Trainer& trainer) override {
    if (!best_ || !best_->improved()) return;
    const nlohmann::json state = trainer.state();
    if (folder_) ddp::write_checkpoint(path_ / "best.checkpoint", state, trainer.blocks());
  }
  void on_step_end(Trainer& trainer) override {
    const bool due = trainer.step() % (every_steps_ > 0 ? every_steps_ : trainer.steps_of_epoch()) == 0;
    if (!due && !trainer.done() && !(asked_ && asked_(trainer.step()))) return;
    const nlohmann::json state = trainer.state();
    if (folder_) folder_->start_write(trainer.step(), state, trainer.blocks());
  }
  void on_fit_end(Trainer&) override {
    if (folder_) folder_->wait();
  }

 private:
  std::filesystem::path path_;
  std::optional<ddp::CheckpointFolder> folder_;  // on rank 0
  std::size_t every_steps_;
  const EarlyStopping* best_;
  std::function<bool(std::size_t)> asked_;
};

}  // namespace trainer
