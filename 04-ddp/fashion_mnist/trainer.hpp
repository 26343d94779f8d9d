// trainer.hpp: the loop of a training, as PyTorch Lightning takes it out of the user's hands. A Module says what is
// trained; the Trainer does it on all ranks, and has hooks, early stopping and checkpoints.
//
// Everything here is collective: all ranks make the same objects with the same options and the same calls. An exception
// on one rank leaves fit() there, and in multinode::run() ends all ranks.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "ddp/checkpoint.hpp"

#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace trainer {

using Metrics = std::map<std::string, double>;  // by name: "val_loss"

struct Sums {
  double loss = 0, samples = 0;
  void operator+=(const Sums& other) { loss += other.loss, samples += other.samples; }
  friend void to_json(nlohmann::json& json, const Sums& sums) { json = {sums.loss, sums.samples}; }
  friend void from_json(const nlohmann::json& json, Sums& sums) { sums = {json.at(0), json.at(1)}; }
};

class Module {
 public:
  virtual ~Module() = default;
  // What a checkpoint holds: parameters and the optimizer's state, in host memory, as they are now; rank 0's is used.
  virtual const std::vector<ddp::NamedBlock>& state() = 0;
  // Gives all ranks the state of the first whole one of rank 0's checkpoints, as ddp::load_checkpoint() does.
  virtual ddp::Restored restore(const std::vector<std::filesystem::path>& newest_first,
                                const nlohmann::json& hyperparameters) = 0;
  virtual std::size_t steps() const = 0;  // of an epoch
  // training_step(first), (first + 1) ... of this epoch, which is counted from 1, come next. What they do is a function
  // of epoch and step, so that a training can resume in the middle of an epoch.
  virtual void begin_epoch(std::size_t epoch, std::size_t first) = 0;
  virtual void training_step(std::size_t step) = 0;  // forward, backward, reduction, update
  virtual Sums take_losses() = 0;                    // of all ranks, since the last call
  virtual Metrics validate() = 0;                    // the same bits on all ranks
};

struct TrainerOptions {
  std::size_t max_epochs = 1;
  std::size_t max_steps = std::numeric_limits<std::size_t>::max();  // of all epochs; also in the middle of one
  std::size_t log_every = 50;           // steps of an epoch; the last of an epoch always logs
  nlohmann::json hyperparameters = {};  // what a resumed training cannot change, by name: {"--seed", 1}
  // Hooks, called on all ranks: there is a new "train_loss_step", the mean since the last log; there are a new
  // "train_loss_epoch" and what Module::validate() returned.
  std::function<void(const class Trainer&)> on_log = {}, on_validation_end = {};

  // Early stopping: after so many epochs (0: never) whose score was not finite and larger than all before.
  std::size_t patience = 0;
  std::function<double(const Metrics&)> score = {};

  // Rank 0 writes the newest two checkpoints to this folder, and alone needs it; with `patience`, also best.checkpoint
  // after an epoch with the best score so far. Empty: none.
  std::filesystem::path checkpoints = {};
  std::size_t checkpoint_every = 0;                       // steps; 0: every epoch; and always at the end
  std::function<bool(std::size_t step)> save_asked = {};  // one more, where it returns true, on all ranks
};

class Trainer {
 public:
  // Resumes from the newest whole checkpoint: on the same number of ranks the parameters become the same, bit for bit.
  Trainer(multinode::World& world, Module& module, TrainerOptions options)
      : options_(std::move(options)), module_(module) {
    if (!options_.checkpoints.empty() && world.rank() == 0) folder_.emplace(options_.checkpoints, &world.watchdog());
    ddp::Restored restored =
        module_.restore(ddp::CheckpointFolder::newest_first(options_.checkpoints), options_.hyperparameters);
    resumed_ = std::move(restored.path);
    if (!restored.state.is_null()) at_ = restored.state.at("trainer");
  }

  // Trains until max_epochs, max_steps, or early stopping.
  void fit() {
    while (!done()) {
      const std::size_t first = at_.epochs * module_.steps(),
                        end = std::min(first + module_.steps(), options_.max_steps);
      module_.begin_epoch(at_.epochs + 1, at_.step - first);
      while (at_.step < end) {
        module_.training_step(at_.step - first);
        ++at_.step;
        if ((at_.step - first) % options_.log_every == 0 || at_.step == end) log();
        if (at_.step < end) save_if_due();
      }
      metrics_["train_loss_epoch"] = at_.epoch.loss / at_.epoch.samples;
      for (const auto& [name, value] : module_.validate()) metrics_[name] = value;
      if (options_.on_validation_end) options_.on_validation_end(*this);
      if (end - first == module_.steps()) {
        ++at_.epochs;
        at_.epoch = {};
        if (options_.patience > 0) compare_with_best();
      }
      save_if_due();
    }
    if (folder_) folder_->wait();
  }

  bool done() const { return stopped() || at_.epochs >= options_.max_epochs || at_.step >= options_.max_steps; }
  bool stopped() const { return options_.patience > 0 && at_.without >= options_.patience; }  // early
  std::size_t step() const { return at_.step; }                                               // so far, of all epochs
  std::size_t epochs() const { return at_.epochs; }                                           // complete ones
  const Metrics& metrics() const { return metrics_; }
  const std::filesystem::path& resumed() const { return resumed_; }  // the checkpoint; empty: none

 private:
  void log() {
    at_.line += module_.take_losses();
    metrics_["train_loss_step"] = at_.line.loss / at_.line.samples;
    at_.epoch += std::exchange(at_.line, {});
    if (options_.on_log) options_.on_log(*this);
  }

  void compare_with_best() {
    const double score = options_.score(metrics_);
    ++at_.without;
    if (!std::isfinite(score) || (!at_.best.is_null() && score <= at_.best.get<double>())) return;
    at_.without = 0;
    at_.best = score;
    if (!options_.checkpoints.empty()) save(true);
  }

  void save_if_due() {
    if (options_.checkpoints.empty()) return;
    const std::size_t every = options_.checkpoint_every > 0 ? options_.checkpoint_every : module_.steps();
    if (at_.step % every == 0 || done() || (options_.save_asked && options_.save_asked(at_.step))) save(false);
  }

  void save(bool best) {
    at_.line += module_.take_losses();
    nlohmann::json state = options_.hyperparameters;
    state["trainer"] = at_;
    const std::vector<ddp::NamedBlock>& blocks = module_.state();
    if (folder_ && best) ddp::write_checkpoint(options_.checkpoints / "best.checkpoint", state, blocks);
    if (folder_ && !best) folder_->start_write(at_.step, state, blocks);
  }

  TrainerOptions options_;
  Module& module_;
  std::optional<ddp::CheckpointFolder> folder_;  // on rank 0
  struct At {                                    // what of this a checkpoint holds
    std::size_t epochs = 0, step = 0;            // complete epochs; steps of all
    Sums epoch, line;                            // of all ranks: of the epoch up to the last log; since then
    nlohmann::json best;                         // score; null: none yet
    std::size_t without = 0;                     // epochs without a better one
    NLOHMANN_DEFINE_TYPE_INTRUSIVE(At, epochs, step, epoch, line, best, without)
  } at_;
  Metrics metrics_;
  std::filesystem::path resumed_;
};

}  // namespace trainer
