#include "trainer.hpp"

#include "../ddp/checkpoint.hpp"

#include <multinode/check.hpp>
#include <multinode/text.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <set>

#include <stdexcept>
#include <utility>

namespace trainer {
namespace {

// What must be the same everywhere, or the ranks would wait for each other in different collectives.
void require_same(multinode::World& world, const char* what, const std::string& mine) {
  const std::vector<std::string> all = world.gather(what, mine);
  for (std::size_t r = 1; r < all.size(); ++r)
    if (all[r] != all[0])
      throw std::runtime_error("the ranks' " + std::string(what) + " differ: rank 0 has " + all[0] + "; rank " +
                               std::to_string(r) + " has " + all[r]);
}

}  // namespace

const Batch& DataModule::validation_batch(std::size_t) {
  throw std::logic_error("DataModule: validation_batches() without a validation_batch()");
}

Trainer::Trainer(multinode::World& world, multinode::Communicator& communicator, TrainerOptions options)
    : world_(world), communicator_(communicator), options_(std::move(options)) {
  if (communicator.backend() == multinode::Backend::nccl)
    throw multinode::UsageError("--backend nccl: the Trainer trains on the CPU; use --backend mpi or gloo");
  if (options_.accumulate_batches == 0 || options_.log_every == 0 || !(options_.gradient_clip >= 0))
    throw std::invalid_argument("Trainer: accumulate_batches and log_every are at least 1, gradient_clip at least 0");
  std::set<std::string> names;
  for (const Callback* callback : options_.callbacks)
    if (const std::string name = callback->name(); !name.empty() && !names.insert(name).second)
      throw std::invalid_argument("Trainer: two callbacks are named '" + name + "'");
}

void Trainer::fit(Module& module, DataModule& data, const std::optional<std::filesystem::path>& checkpoint) {
  optimizer_ = module.configure_optimizer();
  blocks_ = module.parameters();
  parameters_ = blocks_.size();
  std::size_t elements = 0;
  for (const ddp::NamedBlock& parameter : parameters()) {
    if (parameter.block.type != multinode::DataType::float32)
      throw std::invalid_argument("Trainer: '" + parameter.name + "' is not of float");
    elements += parameter.block.count;
  }
  for (ddp::NamedBlock& block : optimizer_->state()) blocks_.push_back(std::move(block));
  epochs_ = batch_ = step_ = 0;
  since_log_ = epoch_ = {};
  metrics_.clear();
  wanted_stop_.clear();
  stopped_.clear();
  batches_ = data.training_batches();
  if (batches_ == 0) throw std::invalid_argument("Trainer: no batches to train on");
  require_same(world_, "trainings",
               nlohmann::json{{"max_epochs", options_.max_epochs},
                              {"max_steps", options_.max_steps},
                              {"accumulate_batches", options_.accumulate_batches},
                              {"log_every", options_.log_every},
                              {"callbacks", options_.callbacks.size()},
                              {"training batches", batches_},
                              {"validation batches", data.validation_batches()}}
                   .dump());
  ddp::broadcast_parameters(world_, communicator_, parameters());
  load(checkpoint.value_or(""));

  std::vector<float> gradients(elements);
  ddp::Reducer<float> reducer(world_, communicator_, parameters(), gradients, options_.reducer);
  for (Callback* callback : options_.callbacks) callback->on_fit_begin(*this);
  agree_to_stop();
  // An epoch that a checkpoint has all steps of, but not the validation, is ended in any case.
  while (stopped_.empty() && epochs_ < options_.max_epochs && (step_ < options_.max_steps || batch_ == batches_)) {
    data.begin_epoch(epochs_ + 1, batch_);
    while (stopped_.empty() && batch_ < batches_ && step_ < options_.max_steps) {
      train_step(module, data, reducer);
      const bool logs = step_ % options_.log_every == 0 || batch_ == batches_;
      if (logs) log();
      for (Callback* callback : options_.callbacks) callback->on_step_end(*this);
      if (logs) agree_to_stop();
    }
    if (batch_ < batches_) break;
    metrics_["train_loss_epoch"] = epoch_.loss / epoch_.samples;
    for (const auto& [name, value] : validate(module, data)) metrics_[name] = value;
    for (Callback* callback : options_.callbacks) callback->on_validation_end(*this);
    ++epochs_;
    batch_ = 0;
    epoch_ = {};
    for (Callback* callback : options_.callbacks) callback->on_epoch_end(*this);
    agree_to_stop();
  }
  for (Callback* callback : options_.callbacks) callback->on_fit_end(*this);
}

void Trainer::train_step(Module& module, DataModule& data, ddp::Reducer<float>& reducer) {
  const std::size_t end = std::min(batch_ + options_.accumulate_batches, batches_);
  std::size_t samples = 0;
  for (std::size_t b = batch_; b < end; ++b) samples += data.training_samples(b);
  for (; batch_ < end; ++batch_) {
    const Batch& batch = data.training_batch(batch_);
    if (batch_ + 1 < end)
      reducer.accumulate();
    else
      reducer.begin(samples);
    const double loss = module.training_step(batch, step_, reducer);
    if (!std::isfinite(loss))
      throw std::runtime_error("the loss is " + std::to_string(loss) + " in step " + std::to_string(step_ + 1) +
                               "; a smaller learning rate may help");
    reducer.wait();
    since_log_.loss += loss;
    since_log_.samples += static_cast<double>(batch.size());
  }
  if (options_.gradient_clip > 0) clip(reducer.storage());
  const double rate = module.learning_rate(step_);
  optimizer_->begin_step();
  for (std::size_t i = 0; i < parameters_; ++i)
    optimizer_->update(i, {static_cast<float*>(blocks_[i].block.data), blocks_[i].block.count}, reducer.gradient(i),
                       rate);
  ++step_;
}

// Every rank has the same gradients, and so the same norm.
void Trainer::clip(std::span<float> gradients) const {
  double squares = 0;
  for (const float g : gradients) squares += static_cast<double>(g) * static_cast<double>(g);
  const double norm = std::sqrt(squares);
  if (norm > options_.gradient_clip)
    for (float& g : gradients) g *= static_cast<float>(options_.gradient_clip / norm);
}

void Trainer::log() {
  double sums[] = {since_log_.loss, since_log_.samples};
  communicator_.all_reduce(std::span<double>(sums));
  metrics_["train_loss_step"] = sums[0] / sums[1];
  epoch_.loss += sums[0];
  epoch_.samples += sums[1];
  since_log_ = {};
  for (Callback* callback : options_.callbacks) callback->on_log(*this);
}

void Trainer::agree_to_stop() {
  double wanted = wanted_stop_.empty() ? 0 : 1;
  communicator_.all_reduce(std::span<double>(&wanted, 1));
  if (wanted == 0) return;
  for (const std::string& reason : world_.gather("reason to stop", wanted_stop_))
    if (stopped_.empty()) stopped_ = reason;
}

Metrics Trainer::validate(Module& module, DataModule& data) {
  Metrics sums;
  double samples = 0;
  for (std::size_t b = 0; b < data.validation_batches(); ++b) {
    const Batch& batch = data.validation_batch(b);
    for (const auto& [name, sum] : module.validation_step(batch)) sums[name] += sum;
    samples += static_cast<double>(batch.size());
  }
  std::vector<double> numbers{samples};
  for (const auto& [name, sum] : sums) numbers.push_back(sum);
  require_same(world_, "metrics", multinode::join(sums, ", ", [](const auto& named) { return named.first; }));
  communicator_.all_reduce(std::span(numbers));
  std::size_t i = 0;
  for (auto& [name, mean] : sums) mean = numbers[++i] / numbers[0];
  return sums;
}

double Trainer::metric(const std::string& name) const {
  if (const auto found = metrics_.find(name); found != metrics_.end()) return found->second;
  std::string all;
  for (const auto& [known, value] : metrics_) all += " '" + known + "'";
  throw std::invalid_argument("there is no metric '" + name + "'; there are:" + all);
}

// What a checkpoint must have been made with.
nlohmann::json Trainer::settled() const {
  nlohmann::json settled = options_.hyperparameters;
  settled.update({{"program", world_.program()}, {"batches in an epoch", batches_}});
  return settled;
}

nlohmann::json Trainer::state() {
  // Each rank's sum, and not all of them together: adding up goes on as if there had been no break.
  std::vector<double> sums(2 * static_cast<std::size_t>(world_.size()));
  const double mine[] = {since_log_.loss, since_log_.samples};
  communicator_.all_gather(std::span<const double>(mine), std::span(sums));
  nlohmann::json callbacks = nlohmann::json::object();
  for (const Callback* callback : options_.callbacks)
    if (!callback->name().empty()) callbacks[callback->name()] = callback->state();
  nlohmann::json state = settled();
  state["trainer"] = {{"epochs", epochs_},
                      {"batch", batch_},
                      {"step", step_},
                      {"since_log", sums},
                      {"epoch", {epoch_.loss, epoch_.samples}},
                      {"callbacks", callbacks}};
  return state;
}

void Trainer::load(const std::filesystem::path& checkpoint) {
  const nlohmann::json whole = ddp::load_checkpoint(world_, communicator_, checkpoint, blocks_, settled());
  if (whole.is_null()) return;
  const nlohmann::json& state = whole.at("trainer");
  epochs_ = state.at("epochs");
  batch_ = state.at("batch");
  step_ = state.at("step");
  epoch_ = {state.at("epoch").at(0), state.at("epoch").at(1)};
  const std::vector<double> sums = state.at("since_log");
  const auto rank = static_cast<std::size_t>(world_.rank());
  if (sums.size() == 2 * static_cast<std::size_t>(world_.size()))
    since_log_ = {sums[2 * rank], sums[2 * rank + 1]};
  else if (rank == 0)
    for (std::size_t i = 0; i < sums.size(); i += 2)
      since_log_ = {since_log_.loss + sums[i], since_log_.samples + sums[i + 1]};
  for (Callback* callback : options_.callbacks)
    if (const auto saved = state.at("callbacks").find(callback->name()); saved != state.at("callbacks").end())
      callback->load_state(*saved);
}

}  // namespace trainer
