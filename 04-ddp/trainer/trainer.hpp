// trainer.hpp: the loop of a training, in the manner of PyTorch Lightning: a Module says what is trained, a DataModule
// on what, Callbacks what else is done, and the Trainer does it on all ranks. On the CPU, in float.
//
// Everything here is collective unless it says otherwise: all ranks make the same objects with the same options and the
// same calls. What a function of a Module, a DataModule or a Callback throws on one rank leaves fit() there, and in
// multinode::run() ends all ranks with its line.
#pragma once

#include "../data/batch.hpp"
#include "../ddp/parameters.hpp"
#include "../ddp/reducer.hpp"
#include "../model/optimizer.hpp"

#include <multinode/communicator.hpp>
#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#include <cstddef>
#include <filesystem>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace trainer {

using Batch = data::Batch<float>;
using Metrics = std::map<std::string, double>;  // by name: "val_loss"

class Module {
 public:
  virtual ~Module() = default;

  // Of float, in memory that stays where it is. All ranks get rank 0's elements before the first step.
  virtual std::vector<ddp::NamedBlock> parameters() = 0;
  virtual std::unique_ptr<model::Optimizer<float>> configure_optimizer() = 0;  // called at the start of each fit()
  virtual double learning_rate(std::size_t step) = 0;                          // steps are counted from 0

  // Forward and backward pass over this rank's part of a batch, which may be empty. Returns the loss and leaves its
  // gradients, both SUMS over the samples: writes gradients.gradient(i), or adds to it where gradients.adds(), then
  // gradients.mark_ready(i), for each parameter i, the sooner the better. Does not communicate.
  virtual double training_step(const Batch& batch, std::size_t step, ddp::Reducer<float>& gradients) = 0;

  // Sums over the samples of this rank's part, which may be empty, by name: the same names each time, on all ranks.
  // metrics() then have their means over all samples of all ranks. Does not communicate.
  virtual Metrics validation_step(const Batch& batch) = 0;
};

class DataModule {
 public:
  virtual ~DataModule() = default;

  virtual std::size_t training_batches() const = 0;                   // of an epoch
  virtual std::size_t training_samples(std::size_t batch) const = 0;  // in that batch, of all ranks together

  // Epochs are counted from 1. After it training_batch() is asked for batches first, first + 1 ...; what they hold is a
  // function of epoch and batch, so that a training can go on in the middle of an epoch.
  virtual void begin_epoch(std::size_t epoch, std::size_t first) = 0;
  // This rank's part. Stays as it is until the following call of this object.
  virtual const Batch& training_batch(std::size_t batch) = 0;

  virtual std::size_t validation_batches() const { return 0; }  // the same on all ranks, whose parts may be empty
  virtual const Batch& validation_batch(std::size_t batch);     // as training_batch()
};

class Trainer;

// What is done beside the training. The functions are called on all ranks, for the callbacks in the order in which the
// Trainer was given them, and may communicate. What one leaves empty does nothing.
class Callback {
 public:
  virtual ~Callback() = default;

  virtual void on_fit_begin(Trainer&) {}  // parameters and state are those of the checkpoint, if there is one
  virtual void on_step_end(Trainer&) {}   // the parameters have moved
  // Before on_step_end(), every log_every steps and in an epoch's last one: metrics() have a new "train_loss_step", the
  // mean over all samples since the last time.
  virtual void on_log(Trainer&) {}
  virtual void on_validation_end(Trainer&) {}  // of each epoch: metrics() have it, and a new "train_loss_epoch"
  virtual void on_epoch_end(Trainer&) {}       // after all callbacks' on_validation_end(); epochs() includes it
  virtual void on_fit_end(Trainer&) {}

  // What a checkpoint holds of it, under a name that no other callback of the Trainer has. Empty: nothing.
  virtual std::string name() const { return ""; }
  virtual nlohmann::json state() const { return {}; }
  virtual void load_state(const nlohmann::json&) {}  // before on_fit_begin()
};

struct TrainerOptions {
  std::size_t max_epochs = 1;
  std::size_t max_steps = std::numeric_limits<std::size_t>::max();  // of all epochs; also in the middle of one
  std::size_t accumulate_batches = 1;  // in a step: a larger batch than memory holds; fewer in an epoch's last step
  double gradient_clip = 0;            // a gradient whose Euclidean norm is larger is scaled to it; 0: none is
  std::size_t log_every = 50;          // steps
  // What a training that goes on from a checkpoint cannot change, by name: {"--seed", 1}.
  nlohmann::json hyperparameters = nlohmann::json::object();
  std::vector<Callback*> callbacks = {};  // not owned; they outlive the Trainer
  ddp::ReducerOptions reducer = {};       // buckets are not rebuilt: a resumed training would add in another order
};

class Trainer {
 public:
  // Throws std::invalid_argument for options that make no training, multinode::UsageError for an nccl communicator.
  Trainer(multinode::World& world, multinode::Communicator& communicator, TrainerOptions options);

  // Trains the module until max_epochs, max_steps or stop(). With a checkpoint it goes on from there, as if there had
  // been no break: with the same number of ranks the parameters become the same, bit for bit. Only rank 0's
  // `checkpoint` is looked at. Throws std::runtime_error on the rank where the loss is not finite, and where options or
  // metrics are other ones than rank 0's; what ddp::load_checkpoint() throws, also for another program's checkpoint,
  // for other hyperparameters, and for another number of batches in an epoch.
  void fit(Module& module, DataModule& data, const std::optional<std::filesystem::path>& checkpoint = std::nullopt);

  // The means over all samples of all ranks; empty without validation batches.
  Metrics validate(Module& module, DataModule& data);

  // May be called by one rank alone. fit() ends on all ranks in the same step: at the next log, or the epoch's end.
  void stop(const std::string& reason) { wanted_stop_ = reason; }

  // For callbacks.
  std::size_t step() const { return step_; }               // steps so far, of all epochs
  std::size_t epochs() const { return epochs_; }           // complete ones
  std::size_t batch() const { return batch_; }             // batches done of the epoch after them ...
  std::size_t batches() const { return batches_; }         // ... and all of it
  const Metrics& metrics() const { return metrics_; }      // the newest; the same bits on all ranks
  double metric(const std::string& name) const;            // std::invalid_argument that lists those that there are
  const std::string& stopped() const { return stopped_; }  // why fit() ends before its time; empty: it does not
  nlohmann::json state();                                  // of the training, without blocks(): what a checkpoint holds
  std::span<const ddp::NamedBlock> blocks() const { return blocks_; }  // of the module and its optimizer
  std::span<const ddp::NamedBlock> parameters() const { return std::span(blocks_).first(parameters_); }
  multinode::World& world() const { return world_; }
  multinode::Communicator& communicator() const { return communicator_; }

 private:
  struct Sum {
    double loss = 0, samples = 0;
  };

  void train_step(Module& module, DataModule& data, ddp::Reducer<float>& reducer);
  void clip(std::span<float> gradients) const;
  void log();
  void agree_to_stop();
  nlohmann::json settled() const;
  void load(const std::filesystem::path& checkpoint);

  multinode::World& world_;
  multinode::Communicator& communicator_;
  TrainerOptions options_;

  std::size_t epochs_ = 0, batch_ = 0, batches_ = 0, step_ = 0;
  Sum since_log_;  // this rank's
  Sum epoch_;      // all ranks', up to the last log
  Metrics metrics_;
  std::string wanted_stop_;  // by this rank
  std::string stopped_;
  std::unique_ptr<model::Optimizer<float>> optimizer_;
  std::vector<ddp::NamedBlock> blocks_;
  std::size_t parameters_ = 0;  // the first so many of the blocks
};

}  // namespace trainer
