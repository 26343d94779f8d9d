// trainer.hpp: the loop of a training, as PyTorch Lightning takes it out of the user's hands. A Module says what is
// trained, Callbacks what else is done, and the Trainer does it on all ranks.
//
// Everything here is collective: all ranks make the same objects with the same options and the same calls. An exception
// on one rank leaves fit() there, and in multinode::run() ends all ranks.
#pragma once

#include "ddp/checkpoint.hpp"

#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

namespace trainer {

using Metrics = std::map<std::string, double>;  // by name: "val_loss"

struct Sums {
  double loss = 0, samples = 0;
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
  virtual void on_step_end(Trainer&) {}   // the parameters have moved
  virtual void on_log(Trainer&) {}        // before it: there is a new "train_loss_step", the mean since the last log
  virtual void on_epoch_end(Trainer&) {}  // there is a new "train_loss_epoch", and what Module::validate() returned
  virtual void on_fit_end(Trainer&) {}
  // What a checkpoint holds of it, under a name that no other callback has. Empty: nothing.
  virtual std::string name() const { return ""; }
  virtual nlohmann::json state() const { return {}; }
  virtual void load_state(Trainer&, const nlohmann::json&) {}
};

struct TrainerOptions {
  std::size_t max_epochs = 1;
  std::size_t max_steps = std::numeric_limits<std::size_t>::max();  // of all epochs; also in the middle of one
  std::size_t log_every = 50;                                       // steps; the last of an epoch always logs
  nlohmann::json hyperparameters = {};  // what a resumed training cannot change, by name: {"--seed", 1}
  std::vector<Callback*> callbacks = {};
};

class Trainer {
 public:
  Trainer(multinode::World& world, TrainerOptions options) : world_(world), options_(std::move(options)) {}

  // Trains until max_epochs, max_steps or stop(). Resumes from the first whole one of rank 0's `checkpoints`: on the
  // same number of ranks the parameters become the same, bit for bit.
  void fit(Module& module, const std::vector<std::filesystem::path>& checkpoints = {}) {
    module_ = &module;
    options_.hyperparameters["steps of an epoch"] = module.steps();
    load(checkpoints);
    for (Callback* callback : options_.callbacks) callback->on_fit_begin(*this);
    while (stopped_.empty() && epochs_ < options_.max_epochs && step_ < options_.max_steps) {
      module.begin_epoch(epochs_ + 1, step_ - epochs_ * module.steps());
      while (step_ < (epochs_ + 1) * module.steps() && step_ < options_.max_steps) {
        module.training_step(step_ - epochs_ * module.steps());
        ++step_;
        if (step_ % options_.log_every == 0 || step_ == (epochs_ + 1) * module.steps()) log();
        for (Callback* callback : options_.callbacks) callback->on_step_end(*this);
      }
      if (step_ < (epochs_ + 1) * module.steps()) break;
      metrics_["train_loss_epoch"] = epoch_.loss / epoch_.samples;
      for (const auto& [name, value] : module.validate()) metrics_[name] = value;
      ++epochs_;
      epoch_ = {};
      for (Callback* callback : options_.callbacks) callback->on_epoch_end(*this);
    }
    for (Callback* callback : options_.callbacks) callback->on_fit_end(*this);
  }

  // On all ranks, because of what is the same on all of them: fit() ends after this epoch.
  void stop(const std::string& reason) { stopped_ = reason; }

  std::size_t step() const { return step_; }      // steps so far, of all epochs
  std::size_t epochs() const { return epochs_; }  // complete ones
  std::size_t steps_of_epoch() const { return module_->steps(); }
  const Metrics& metrics() const { return metrics_; }      // the same bits on all ranks
  const std::string& stopped() const { return stopped_; }  // why; empty: it has not
  const std::filesystem::path& resumed() const { return resumed_; }
  multinode::World& world() const { return world_; }
  double metric(const std::string& name) const {
    if (const auto found = metrics_.find(name); found != metrics_.end()) return found->second;
    std::string all;
    for (const auto& [known, value] : metrics_) all += " '" + known + "'";
    throw std::invalid_argument("there is no metric '" + name + "'; there are:" + all);
  }

  const std::vector<ddp::NamedBlock>& blocks() const { return module_->state(); }
  // With blocks() the whole state of the training. Losses since the last log are logged first.
  nlohmann::json state() {
    if (logged_ < step_) log();
    nlohmann::json callbacks = nlohmann::json::object();
    for (const Callback* callback : options_.callbacks) callbacks[callback->name()] = callback->state();
    nlohmann::json state = options_.hyperparameters;
    state["trainer"] = {{"epochs", epochs_},
                        {"step", step_},
                        {"epoch", {epoch_.loss, epoch_.samples}},
                        {"callbacks", std::move(callbacks)}};
    return state;
  }

 private:
  void log() {
    const Sums sums = module_->take_losses();
    logged_ = step_;
    metrics_["train_loss_step"] = sums.loss / sums.samples;
    epoch_ = {epoch_.loss + sums.loss, epoch_.samples + sums.samples};
    for (Callback* callback : options_.callbacks) callback->on_log(*this);
  }

  void load(const std::vector<std::filesystem::path>& checkpoints) {
    ddp::Restored restored = module_->restore(checkpoints, options_.hyperparameters);
    resumed_ = std::move(restored.path);
    if (resumed_.empty()) return;
    const nlohmann::json& state = restored.state.at("trainer");
    epochs_ = state.at("epochs");
    step_ = logged_ = state.at("step");
    epoch_ = {state.at("epoch").at(0), state.at("epoch").at(1)};
    for (Callback* callback : options_.callbacks)
      if (const auto saved = state.at("callbacks").find(callback->name()); saved != state.at("callbacks").end())
        callback->load_state(*this, *saved);
  }

  multinode::World& world_;
  TrainerOptions options_;
  Module* module_ = nullptr;
  std::size_t epochs_ = 0, step_ = 0, logged_ = 0;  // complete epochs; steps; steps at the last log
  Sums epoch_;                                      // of all ranks, up to the last log
  Metrics metrics_;
  std::string stopped_;
  std::filesystem::path resumed_;
};

// The best value of a metric so far, the largest or the smallest. It is finite.
struct Best {
  std::string monitor;
  bool largest = false;
  std::optional<double> value = {};

  bool improves(const Trainer& trainer) {
    const double next = trainer.metric(monitor);
    if (!std::isfinite(next) || (value && !(largest ? next > *value : next < *value))) return false;
    value = next;
    return true;
  }
  nlohmann::json state() const { return value ? nlohmann::json(*value) : nlohmann::json(); }
  void load_state(const nlohmann::json& state) {
    if (!state.is_null()) value = state.get<double>();
  }
};

// Stops the training when its metric has not been better for `patience` epochs.
class EarlyStopping : public Callback {
 public:
  EarlyStopping(Best best, std::size_t patience) : best_(std::move(best)), patience_(patience) {}
  void on_epoch_end(Trainer& trainer) override {
    without_ = best_.improves(trainer) ? 0 : without_ + 1;
    stop_if_due(trainer);
  }
  std::string name() const override { return "early stopping"; }
  nlohmann::json state() const override { return {{"best", best_.state()}, {"without", without_}}; }
  void load_state(Trainer& trainer, const nlohmann::json& state) override {
    best_.load_state(state.at("best"));
    state.at("without").get_to(without_);
    stop_if_due(trainer);
  }

 private:
  void stop_if_due(Trainer& trainer) const {
    if (without_ >= patience_)
      trainer.stop(best_.monitor + " has not been better for " + std::to_string(without_) + " epochs");
  }
  Best best_;
  std::size_t patience_, without_ = 0;  // epochs without an improvement
};

// Writes the newest two checkpoints, and best.checkpoint, the one with the best metric. Rank 0 writes, and alone needs
// the folder. The last of the callbacks: a checkpoint holds the state of those before.
class ModelCheckpoint : public Callback {
 public:
  // every_steps: beside the end of each epoch and of the training; 0: only there.
  ModelCheckpoint(multinode::World& world, std::filesystem::path folder, Best best, std::size_t every_steps = 0)
      : path_(std::move(folder)), best_(std::move(best)), every_steps_(every_steps) {
    if (world.rank() == 0) folder_.emplace(path_, 2, &world.watchdog());
  }
  std::vector<std::filesystem::path> newest() const {
    return folder_ ? folder_->newest_first() : std::vector<std::filesystem::path>();
  }
  void on_step_end(Trainer& trainer) override {
    const bool due = every_steps_ > 0 && trainer.step() % every_steps_ == 0;
    if (due && trainer.step() % trainer.steps_of_epoch() != 0) write(trainer, false);
  }
  void on_epoch_end(Trainer& trainer) override { write(trainer, best_.improves(trainer)); }
  void on_fit_end(Trainer& trainer) override {
    if (trainer.step() % trainer.steps_of_epoch() != 0) write(trainer, false);
    if (folder_) folder_->wait();
  }
  std::string name() const override { return "checkpoints"; }
  nlohmann::json state() const override { return best_.state(); }
  void load_state(Trainer&, const nlohmann::json& state) override { best_.load_state(state); }

 private:
  void write(Trainer& trainer, bool best) {
    const nlohmann::json state = trainer.state();
    if (!folder_) return;
    // First the best: a training that resumes from the newest may believe that the best one is there.
    if (best) ddp::write_checkpoint(path_ / "best.checkpoint", state, trainer.blocks());
    folder_->start_write(trainer.step(), state, trainer.blocks());
  }
  std::filesystem::path path_;
  std::optional<ddp::CheckpointFolder> folder_;  // on rank 0
  Best best_;
  std::size_t every_steps_;
};

}  // namespace trainer
