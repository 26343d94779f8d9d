#include "callbacks.hpp"

#include <multinode/check.hpp>
#include <multinode/text.hpp>

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace trainer {
namespace {

using Clock = std::chrono::steady_clock;

// What a checkpoint has of it: null, where there is none.
nlohmann::json json_of(const std::optional<double>& value) { return value ? nlohmann::json(*value) : nlohmann::json(); }

std::optional<double> optional_of(const nlohmann::json& value) {
  return value.is_null() ? std::nullopt : std::optional(value.get<double>());
}

}  // namespace

std::string summary(std::span<const ddp::NamedBlock> parameters) {
  multinode::Table table({"parameter", "shape", "elements"});
  std::size_t elements = 0, bytes = 0;
  for (const ddp::NamedBlock& parameter : parameters) {
    table.add({parameter.name, multinode::join(parameter.shape, " x "), std::to_string(parameter.block.count)});
    elements += parameter.block.count;
    bytes += parameter.block.bytes();
  }
  std::ostringstream out;
  table.print(out);
  return out.str() + fmt::format("{} parameters, {:.2f} MB", elements, static_cast<double>(bytes) / 1e6);
}

void ProgressBar::on_fit_begin(Trainer& trainer) {
  progress_.emplace(trainer.world().rank() == 0);
  progress_->line(summary(trainer.parameters()));
  if (trainer.step() > 0) progress_->line(fmt::format("goes on from step {}", trainer.step()));
  epoch_began_ = Clock::now();
}

void ProgressBar::on_log(Trainer& trainer) {
  progress_->step(static_cast<int>(trainer.epochs() + 1), trainer.batch(), trainer.batches(),
                  fmt::format(": train_loss_step {:.4g}", trainer.metric("train_loss_step")),
                  trainer.batch() < trainer.batches());
}

void ProgressBar::on_epoch_end(Trainer& trainer) {
  std::string line = fmt::format("epoch {}:", trainer.epochs());
  for (const auto& [name, value] : trainer.metrics())
    if (name != "train_loss_step") line += " " + name + fmt::format(" {:.4g},", value);
  progress_->line(line + fmt::format(" {:.2f} s", std::chrono::duration<double>(Clock::now() - epoch_began_).count()));
  epoch_began_ = Clock::now();
}

void ProgressBar::on_fit_end(Trainer& trainer) {
  if (!trainer.stopped().empty()) progress_->line("stopped: " + trainer.stopped());
  progress_.reset();
}

bool Best::improves(double value, double min_delta) {
  if (!std::isfinite(value)) return false;
  if (value_ && !(mode_ == Mode::min ? value < *value_ - min_delta : value > *value_ + min_delta)) return false;
  value_ = value;
  return true;
}

EarlyStopping::EarlyStopping(EarlyStoppingOptions options) : options_(std::move(options)), best_(options_.mode) {
  if (options_.patience == 0 || !(options_.min_delta >= 0))
    throw std::invalid_argument("EarlyStopping: patience is at least 1, min_delta at least 0");
}

void EarlyStopping::on_fit_begin(Trainer& trainer) {
  if (trainer.step() == 0) load_state({{"best", nullptr}, {"epochs_without", 0}, {"finite", true}});
  stop_if_due(trainer);
}

void EarlyStopping::on_validation_end(Trainer& trainer) {
  const double value = trainer.metric(options_.monitor);
  finite_ = std::isfinite(value);
  epochs_without_ = best_.improves(value, options_.min_delta) ? 0 : epochs_without_ + 1;
  stop_if_due(trainer);
}

void EarlyStopping::stop_if_due(Trainer& trainer) const {
  if (!finite_)
    trainer.stop(options_.monitor + " is not finite");
  else if (epochs_without_ >= options_.patience)
    trainer.stop(fmt::format("{} has not been better than {:.4g}{} for {} epoch{}", options_.monitor, *best_.value(),
                             options_.min_delta > 0 ? fmt::format(" by more than {:g}", options_.min_delta) : "",
                             epochs_without_, epochs_without_ == 1 ? "" : "s"));
}

nlohmann::json EarlyStopping::state() const {
  return {{"best", json_of(best_.value())}, {"epochs_without", epochs_without_}, {"finite", finite_}};
}

void EarlyStopping::load_state(const nlohmann::json& state) {
  best_.set(optional_of(state.at("best")));
  epochs_without_ = state.at("epochs_without");
  finite_ = state.at("finite");
}

ModelCheckpoint::ModelCheckpoint(multinode::World& world, ModelCheckpointOptions options)
    : options_(std::move(options)), best_(options_.mode) {
  if (world.rank() == 0) folder_.emplace(options_.folder, options_.keep, &world.watchdog());
}

std::optional<std::filesystem::path> ModelCheckpoint::newest() const {
  return folder_ ? folder_->newest() : std::nullopt;
}

void ModelCheckpoint::on_fit_begin(Trainer& trainer) {
  if (trainer.step() > 0) return;
  if (newest())  // they would be taken for this training's
    throw multinode::UsageError(
        options_.folder.string() +
        " has checkpoints of a training before this one: go on from them, or use another folder");
  load_state({{"best", nullptr}, {"step", 0}});
}

void ModelCheckpoint::on_step_end(Trainer& trainer) {
  if (options_.every_steps > 0 && trainer.step() % options_.every_steps == 0) write(trainer, false);
}

void ModelCheckpoint::on_epoch_end(Trainer& trainer) {
  write(trainer, best_.improves(trainer.metric(options_.monitor)));
}

void ModelCheckpoint::on_fit_end(Trainer& trainer) {
  if (trainer.step() > written_step_) write(trainer, false);
  if (folder_) folder_->wait();
}

void ModelCheckpoint::write(Trainer& trainer, bool best) {
  written_step_ = trainer.step();
  const nlohmann::json state = trainer.state();
  if (!folder_) return;
  // First the best: a training that goes on from the newest may believe that the best one is there.
  if (best) {
    const auto inside = trainer.world().watchdog().enter("writing a checkpoint", multinode::Watchdog::nobody);
    ddp::write_checkpoint(this->best(), state, trainer.blocks());
  }
  folder_->start_write(trainer.step(), state, trainer.blocks());
}

nlohmann::json ModelCheckpoint::state() const { return {{"best", json_of(best_.value())}, {"step", written_step_}}; }

void ModelCheckpoint::load_state(const nlohmann::json& state) {
  best_.set(optional_of(state.at("best")));
  written_step_ = state.at("step");
}

JsonLogger::JsonLogger(std::filesystem::path path) : path_(std::move(path)) {}

void JsonLogger::on_fit_begin(Trainer& trainer) {
  if (trainer.world().rank() != 0) return;
  std::vector<nlohmann::json> kept;
  if (trainer.step() > 0) {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      const auto object = nlohmann::json::parse(line, nullptr, false);  // a killed run's last line may be half of one
      if (!object.is_object() || !object.contains("step")) continue;
      const bool validated = object.contains("train_loss_epoch");
      if (validated ? object.value("epoch", 0u) <= trainer.epochs() : object.value("step", 0u) <= trainer.step())
        kept.push_back(object);
    }
  }
  lines_.emplace(path_.string());
  write(multinode::fingerprint(trainer.world()));
  for (const nlohmann::json& object : kept) write(object);
}

void JsonLogger::on_log(Trainer& trainer) {
  write({{"epoch", trainer.epochs() + 1},
         {"step", trainer.step()},
         {"train_loss_step", trainer.metric("train_loss_step")}});
}

void JsonLogger::on_validation_end(Trainer& trainer) {
  nlohmann::json line = trainer.metrics();
  line.erase("train_loss_step");
  line["epoch"] = trainer.epochs() + 1;
  line["step"] = trainer.step();
  write(line);
}

void JsonLogger::write(const nlohmann::json& object) {
  if (lines_) lines_->write(object);
}

}  // namespace trainer
