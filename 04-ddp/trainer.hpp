// trainer.hpp: the loop of a training, as PyTorch Lightning takes it out of the user's hands. A Module says what is
// trained; the Trainer does it on all ranks, and has hooks, early stopping and checkpoints.
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
  // What a checkpoint holds: parameters and the optimizer's state, in host memory, as they are now. Only rank 0's is
  // used.
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
using Hook = std::function<void(const Trainer&)>;  // called on all ranks

struct TrainerOptions {
  std::size_t max_epochs = 1;
  std::size_t max_steps = std::numeric_limits<std::size_t>::max();  // of all epochs; also in the middle of one
  std::size_t log_every = 50;           // steps of an epoch; the last of an epoch always logs
  nlohmann::json hyperparameters = {};  // what a resumed training cannot change, by name: {"--seed", 1}
  Hook on_log = {};                     // there is a new "train_loss_step", the mean since the last log
  Hook on_validation_end = {};          // new "train_loss_epoch", and what Module::validate() returned

  // Early stopping: after so many epochs (0: never) in which a metric has not become better, larger or smaller than
  // before and finite.
  std::size_t patience = 0;
  std::string monitor = {};
  bool largest = false;

  // Rank 0 writes the newest two checkpoints to this folder, and alone needs it; with `patience`, also best.checkpoint
  // after an epoch in which the metric improved. Empty: none.
  std::filesystem::path checkpoints = {};
  std::size_t checkpoint_every = 0;                       // steps; 0: every epoch; and always at the end
  std::function<bool(std::size_t step)> save_asked = {};  // one more, where it returns true, on all ranks
};

class Trainer {
 public:
  // Resumes from the newest whole checkpoint: on the same number of ranks the parameters become the same, bit for bit.
  Trainer(multinode::World& world, Module& module, TrainerOptions options)
      : options_(std::move(options)), module_(module) {
    if (!options_.checkpoints.empty() && world.rank() == 0) folder_.emplace(options_.checkpoints, 2, &world.watchdog());
    ddp::Restored restored = module_.restore(folder_ ? folder_->newest_first() : std::vector<std::filesystem::path>(),
                                             options_.hyperparameters);
    resumed_ = std::move(restored.path);
    if (restored.state.is_null()) return;
    const nlohmann::json& state = restored.state.at("trainer");
    epochs_ = state.at("epochs");
    step_ = state.at("step");
    epoch_ = {state.at("epoch").at(0), state.at("epoch").at(1)};
    line_ = {state.at("line").at(0), state.at("line").at(1)};
    if (!state.at("best").is_null()) best_ = state.at("best").get<double>();
    without_ = state.at("without");
  }

  // Trains until max_epochs, max_steps, or early stopping.
  void fit() {
    while (!done()) {
      const std::size_t first = epochs_ * module_.steps(), end = std::min(first + module_.steps(), options_.max_steps);
      const auto start = std::chrono::steady_clock::now();
      const double before = epoch_.samples + line_.samples;
      module_.begin_epoch(epochs_ + 1, step_ - first);
      while (step_ < end) {
        module_.training_step(step_ - first);
        ++step_;
        if ((step_ - first) % options_.log_every == 0 || step_ == end) log();
        if (step_ < end) save_if_due();
      }
      seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
      samples_ = epoch_.samples - before;
      metrics_["train_loss_epoch"] = epoch_.loss / epoch_.samples;
      for (const auto& [name, value] : module_.validate()) metrics_[name] = value;
      if (options_.on_validation_end) options_.on_validation_end(*this);
      if (end - first == module_.steps()) {
        ++epochs_;
        epoch_ = {};
        if (options_.patience > 0) compare_with_best();
      }
      save_if_due();
    }
    if (folder_) folder_->wait();
  }

  bool done() const { return stopped() || epochs_ >= options_.max_epochs || step_ >= options_.max_steps; }
  bool stopped() const { return options_.patience > 0 && without_ >= options_.patience; }  // early
  std::size_t step() const { return step_; }                                               // so far, of all epochs
  std::size_t epochs() const { return epochs_; }                                           // complete ones
  double seconds() const { return seconds_; }          // that this run trained in the epoch, without validation
  double samples() const { return samples_; }          // of all ranks, in that time
  const Metrics& metrics() const { return metrics_; }  // the same bits on all ranks
  const std::filesystem::path& resumed() const { return resumed_; }  // the checkpoint; empty: none

 private:
  void log() {
    line_.add(module_.take_losses());
    metrics_["train_loss_step"] = line_.loss / line_.samples;
    epoch_.add(line_);
    line_ = {};
    if (options_.on_log) options_.on_log(*this);
  }

  void compare_with_best() {
    const double next = metrics_.at(options_.monitor);
    const bool better = std::isfinite(next) && (!best_ || (options_.largest ? next > *best_ : next < *best_));
    without_ = better ? 0 : without_ + 1;
    if (!better) return;
    best_ = next;
    if (options_.checkpoints.empty()) return;
    const nlohmann::json now = state();
    const std::vector<ddp::NamedBlock>& blocks = module_.state();
    if (folder_) ddp::write_checkpoint(options_.checkpoints / "best.checkpoint", now, blocks);
  }

  void save_if_due() {
    if (options_.checkpoints.empty()) return;
    const std::size_t every = options_.checkpoint_every > 0 ? options_.checkpoint_every : module_.steps();
    if (step_ % every != 0 && !done() && !(options_.save_asked && options_.save_asked(step_))) return;
    const nlohmann::json now = state();
    const std::vector<ddp::NamedBlock>& blocks = module_.state();
    if (folder_) folder_->start_write(step_, now, blocks);
  }

  // With Module::state() the whole state of the training.
  nlohmann::json state() {
    line_.add(module_.take_losses());
    nlohmann::json state = options_.hyperparameters;
    state["trainer"] = {{"epochs", epochs_},
                        {"step", step_},
                        {"epoch", {epoch_.loss, epoch_.samples}},
                        {"line", {line_.loss, line_.samples}},
                        {"best", best_ ? nlohmann::json(*best_) : nlohmann::json()},
                        {"without", without_}};
    return state;
  }

  TrainerOptions options_;
  Module& module_;
  std::optional<ddp::CheckpointFolder> folder_;  // on rank 0
  std::size_t epochs_ = 0, step_ = 0;            // complete epochs; steps of all
  Sums epoch_, line_;                            // of all ranks: of the epoch up to the last log; since then
  double seconds_ = 0, samples_ = 0;
  Metrics metrics_;
  std::optional<double> best_;
  std::size_t without_ = 0;  // epochs without an improvement
  std::filesystem::path resumed_;
};

}  // namespace trainer
