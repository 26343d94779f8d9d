// callbacks.hpp: what most trainings want beside the training: to be seen, to be logged, to survive, to end in time.
#pragma once

#include "../ddp/checkpoint.hpp"
#include "../progress.hpp"
#include "trainer.hpp"

#include <multinode/report.hpp>

#include <chrono>
#include <filesystem>
#include <optional>
#include <span>
#include <string>

namespace trainer {

// "layer 1 weights  512 x 784  401408": a table of the parameters, and a line with their number and size.
std::string summary(std::span<const ddp::NamedBlock> parameters);

// On rank 0's standard output: the summary, where the training is (a bar on a terminal, lines elsewhere), a line of
// metrics for each epoch, and why the training ended before its time.
class ProgressBar : public Callback {
 public:
  void on_fit_begin(Trainer& trainer) override;
  void on_log(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer) override;
  void on_fit_end(Trainer& trainer) override;

 private:
  std::optional<Progress> progress_;
  std::chrono::steady_clock::time_point epoch_began_;
};

enum class Mode { min, max };  // which value of a metric is better

// The best value of a metric so far; it is finite.
class Best {
 public:
  explicit Best(Mode mode) : mode_(mode) {}
  bool improves(double value, double min_delta = 0);  // by more than that: it is the new best
  const std::optional<double>& value() const { return value_; }
  void set(const std::optional<double>& value) { value_ = value; }

 private:
  Mode mode_;
  std::optional<double> value_;
};

struct EarlyStoppingOptions {
  std::string monitor = "val_loss";
  Mode mode = Mode::min;
  std::size_t patience = 3;  // epochs in a row, at least 1, that did not improve on the best before them ...
  double min_delta = 0;      // ... by more than this
};

// Stops the training when its metric gets no better, or is not finite any more. Ranks see the same bits of the metric,
// so they all decide the same. on_validation_end() throws std::invalid_argument if there is no such metric.
class EarlyStopping : public Callback {
 public:
  explicit EarlyStopping(EarlyStoppingOptions options);
  void on_fit_begin(Trainer& trainer) override;  // of a training that was stopped already
  void on_validation_end(Trainer& trainer) override;
  std::string name() const override { return "early stopping by " + options_.monitor; }
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  void stop_if_due(Trainer& trainer) const;

  EarlyStoppingOptions options_;
  Best best_;
  std::size_t epochs_without_ = 0;  // an improvement
  bool finite_ = true;
};

struct ModelCheckpointOptions {
  std::filesystem::path folder;
  std::string monitor = "val_loss";
  Mode mode = Mode::min;
  std::size_t keep = 2;         // newest ones
  std::size_t every_steps = 0;  // beside the end of each epoch, and of the training; 0: only there
};

// Writes checkpoints that fit() can go on from: the newest, named by step, and best.checkpoint, the one with the best
// metric at the end of an epoch. Rank 0 writes, in the background, and alone needs the folder.
class ModelCheckpoint : public Callback {
 public:
  // Throws what ddp::CheckpointFolder throws, on rank 0.
  ModelCheckpoint(multinode::World& world, ModelCheckpointOptions options);

  std::optional<std::filesystem::path> newest() const;  // on rank 0; nothing on the others
  std::filesystem::path best() const { return options_.folder / "best.checkpoint"; }
  const std::optional<double>& best_value() const { return best_.value(); }

  void on_fit_begin(Trainer& trainer) override;
  void on_step_end(Trainer& trainer) override;
  void on_epoch_end(Trainer& trainer) override;
  void on_fit_end(Trainer& trainer) override;
  std::string name() const override { return "checkpoints by " + options_.monitor; }
  nlohmann::json state() const override;
  void load_state(const nlohmann::json& state) override;

 private:
  void write(Trainer& trainer, bool best);

  ModelCheckpointOptions options_;
  std::optional<ddp::CheckpointFolder> folder_;  // on rank 0
  Best best_;
  std::size_t written_step_ = 0;
};

// JSON lines, written by rank 0: the fingerprint; {"epoch", "step", "train_loss_step"} for each log; {"epoch", "step",
// "train_loss_epoch" and the validation's metrics} for each epoch. A training that goes on from a checkpoint goes on in
// the same file, without what had come after that checkpoint.
class JsonLogger : public Callback {
 public:
  explicit JsonLogger(std::filesystem::path path);  // empty: writes nothing
  // A line behind the training's. For rank 0; does nothing on the others.
  void write(const nlohmann::json& object);

  void on_fit_begin(Trainer& trainer) override;  // throws what multinode::JsonLines throws
  void on_log(Trainer& trainer) override;
  void on_validation_end(Trainer& trainer) override;

 private:
  std::filesystem::path path_;
  std::optional<multinode::JsonLines> lines_;  // on rank 0, since on_fit_begin()
};

}  // namespace trainer
