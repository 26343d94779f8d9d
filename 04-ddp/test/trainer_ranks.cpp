// trainer_ranks: what the Trainer promises of several ranks, one check a run. Exit status: 0 so it is, 1 it is not.
#include "tiny_training.hpp"

#include <multinode/program.hpp>
#include <multinode/program_options.hpp>

#include <cmath>
#include <fstream>
#include <iostream>
#include <set>

namespace {

namespace fs = std::filesystem;
using trainer::Trainer;
using trainer::TrainerOptions;

struct Check {
  multinode::World& world;
  multinode::Communicator& communicator;
  fs::path folder;

  int last() const { return world.size() - 1; }

  // The same on all ranks, and `wanted`.
  void expect(const char* what, const std::string& mine, const std::string& wanted) const {
    for (const std::string& one : world.gather(what, mine))
      if (one != wanted) throw std::runtime_error(std::string(what) + ": " + one + ", not " + wanted);
  }

  void plateau() const {
    Line line(world, 8, {5, 4, 4.5, 4});
    trainer::EarlyStopping early({.patience = 2});
    Trainer t(world, communicator, {.max_epochs = 100, .callbacks = {&early}});
    t.fit(line, line);
    expect("step of the stop", std::to_string(t.step()), std::to_string(4 * 6));
    expect("reason", t.stopped(), "val_loss has not been better than 4 for 2 epochs");
  }

  void one_stops() const {
    Line line(world);
    Doing doing;
    doing.step_end = [&](Trainer& t) {
      if (world.rank() == last() && t.step() == 3) t.stop("enough");
    };
    Trainer t(world, communicator, {.max_epochs = 100, .log_every = 4, .callbacks = {&doing}});
    t.fit(line, line);
    expect("step of the stop", std::to_string(t.step()), "4");
    expect("reason", t.stopped(), "enough");
  }

  void one_throws() const {
    Line line(world);
    Doing doing;
    doing.step_end = [&](Trainer& t) {
      if (world.rank() == last() && t.step() == 3) throw std::runtime_error("a mistake in a callback");
    };
    Trainer(world, communicator, {.max_epochs = 100, .callbacks = {&doing}}).fit(line, line);
  }

  void other_metrics() const {
    Line line(world);
    if (world.rank() == last()) line.extra_metric = "val_speed";
    Trainer(world, communicator, {}).fit(line, line);
  }

  void other_options() const {
    Line line(world);
    Trainer(world, communicator, {.max_epochs = world.rank() == last() ? 2u : 1u}).fit(line, line);
  }

  // Steps of several batches, and steps of batches that are as large as those together, against a loop in double.
  void accumulate() const {
    const std::size_t epochs = 12;
    double slope = 0, offset = 0, slope_velocity = 0, offset_velocity = 0, largest = 0;
    Line large(world, 16), small(world, 4);
    for (std::size_t epoch = 1; epoch <= epochs; ++epoch) {
      large.begin_epoch(epoch, 0);
      for (std::size_t b = 0; b < large.training_batches(); ++b) {
        double slope_sum = 0, offset_sum = 0;
        const auto batch = large.global_batch(b);
        for (const std::uint32_t s : batch) {
          const double error = slope * double(x_of(s)) + offset - double(y_of(s));
          slope_sum += 2 * error * double(x_of(s));
          offset_sum += 2 * error;
          largest = std::max(largest, std::abs(2 * error));
        }
        slope_velocity = Line::momentum * slope_velocity + slope_sum / double(batch.size());
        offset_velocity = Line::momentum * offset_velocity + offset_sum / double(batch.size());
        slope -= Line::rate * slope_velocity;
        offset -= Line::rate * offset_velocity;
      }
    }
    Trainer(world, communicator, {.max_epochs = epochs}).fit(large, large);
    Trainer(world, communicator, {.max_epochs = epochs, .accumulate_batches = 4}).fit(small, small);
    // A gradient is a mean of at most 16 terms below `largest`, each of 5 roundings, in at most 16 + ranks additions
    // and a division; the update has 4 more. An error of a gradient moves a parameter by rate / (1 - momentum) of it in
    // the end, and descent on a convex function does not make it grow.
    const double roundings = 16 + world.size() + 10;
    const double bound = double(epochs) * 3 * Line::rate / (1 - Line::momentum) * roundings * 0x1p-24 * largest;
    for (const Line* line : {&large, &small}) {
      const double difference =
          std::max(std::abs(double(line->slope()) - slope), std::abs(double(line->offset()) - offset));
      std::cout << "difference " + std::to_string(difference / bound) + " of the bound\n";
      if (!(difference <= bound)) throw std::runtime_error("the parameters are not those of the loop");
    }
  }

  struct Outcome {
    std::string parameters, lines;
    std::size_t step = 0, epochs = 0;
    double best = 0;
    bool operator==(const Outcome&) const = default;
  };
  // Up to `max_steps`, or to death when the validation of an epoch has ended; goes on from what is in the folder of
  // that name.
  Outcome train(const std::string& name, std::size_t max_steps, std::size_t death = 0) const {
    const std::vector<double> planted{5, 4, 4.5, 3, 3.5, 3.25, 3, 2};  // stops after epoch 7, where patience is 3
    Line line(world, 8, planted);
    trainer::EarlyStopping early({.patience = 3});
    trainer::ModelCheckpoint checkpoints(world, {.folder = folder / name, .every_steps = 5});
    trainer::JsonLogger log((folder / (name + ".json")).string());
    struct Death {};
    Doing dying;
    dying.validation_end = [&](Trainer& t) {
      if (t.epochs() + 1 == death) throw Death();
    };
    Trainer t(world, communicator,
              {.max_epochs = 20,
               .max_steps = max_steps,
               .log_every = 4,
               .hyperparameters = {{"batch", 8}},
               .callbacks = {&early, &log, &checkpoints, &dying}});
    try {
      t.fit(line, line, checkpoints.newest());
    } catch (const Death&) {
      return {};
    }
    Outcome outcome{ddp::hashes_of_ranks(world, t.blocks())[0], "", t.step(), t.epochs(),
                    checkpoints.best_value().value_or(-1)};
    std::ifstream file(folder / (name + ".json"));
    std::string text;
    std::getline(file, text);  // the fingerprint has the time
    while (world.rank() == 0 && std::getline(file, text)) outcome.lines += text + "\n";
    return outcome;
  }

  // Breaks: in epochs, at their ends, at a step with a checkpoint, while the patience runs, and several.
  void resume() const {
    const std::size_t never = 1000;
    const Outcome whole = train("whole", never);
    if (whole.step != 7 * 6 || whole.best != 3) throw std::runtime_error("the undisturbed training is not as planned");
    for (const std::vector<std::size_t>& breaks :
         std::vector<std::vector<std::size_t>>{{2}, {5}, {6}, {32}, {36}, {40}, {42}, {1, 7, 30, 33, 41}}) {
      std::string name = "broken";
      for (const std::size_t step : breaks) name += "-" + std::to_string(step);
      for (const std::size_t step : breaks) train(name, step);
      const Outcome broken = train(name, never);
      if (broken != whole)
        throw std::runtime_error(name + ": " + broken.parameters + " in step " + std::to_string(broken.step) +
                                 ", not " + whole.parameters + " in step " + std::to_string(whole.step) + "\n" +
                                 broken.lines + "not\n" + whole.lines);
    }
  }

  // In step 30, the last of epoch 5, there is a checkpoint of an epoch that has not been validated.
  void death() const {
    train("dead", 1000, 5);
    const Outcome undead = train("dead", 30);
    if (undead.step != 30 || undead.epochs != 5) throw std::runtime_error("the epoch of the death was not ended");
    if (train("dead", 1000) != train("alive", 1000)) throw std::runtime_error("a death changes the training");
  }

  void first_half() const { train("half", 20); }
  void second_half() const {
    Line whole(world), rest(world);
    trainer::ModelCheckpoint checkpoints(world, {.folder = folder / "half"});
    Trainer(world, communicator, {.max_epochs = 6}).fit(whole, whole);
    Trainer t(world, communicator, {.max_epochs = 6, .hyperparameters = {{"batch", 8}}, .callbacks = {&checkpoints}});
    t.fit(rest, rest, checkpoints.newest());
    expect("steps", std::to_string(t.step()), "36");
    // As in accumulate(), with terms below 8 from parameters near 0.
    const double bound = 36 * Line::rate / (1 - Line::momentum) * (8 + 2 * world.size() + 10) * 0x1p-24 * 8;
    if (!(std::abs(double(whole.slope() - rest.slope())) <= bound) ||
        !(std::abs(double(whole.offset() - rest.offset())) <= bound))
      throw std::runtime_error("with another number of ranks it goes on elsewhere");
  }
};

}  // namespace

int main(int argc, char** argv) {
  multinode::CommonOptions common;
  std::string name, folder;
  boost::program_options::options_description known("Options of trainer_ranks");
  known.add_options()("check", boost::program_options::value(&name), "which")(
      "folder", boost::program_options::value(&folder), "for files, empty");
  const std::map<std::string, void (Check::*)() const> checks{{"plateau", &Check::plateau},
                                                              {"one-stops", &Check::one_stops},
                                                              {"one-throws", &Check::one_throws},
                                                              {"other-metrics", &Check::other_metrics},
                                                              {"other-options", &Check::other_options},
                                                              {"accumulate", &Check::accumulate},
                                                              {"resume", &Check::resume},
                                                              {"death", &Check::death},
                                                              {"first-half", &Check::first_half},
                                                              {"second-half", &Check::second_half}};
  const auto validate = [&] {
    if (!checks.contains(name)) throw multinode::UsageError("--check: no such check: '" + name + "'");
  };
  return multinode::run({"trainer_ranks", known, common, validate}, argc, argv, [&](multinode::World& world) {
    const auto communicator = multinode::make_cpu_communicator(world, multinode::parse_backend(common.backend));
    (Check{world, *communicator, folder}.*checks.at(name))();
    return multinode::exit_right;
  });
}
