// train_step_gpu.hpp: train_step.hpp's step for a model on a GPU, which the host does not wait for: it goes on to load
// the next batch. What came of a step is looked at later, with take_loss().
#pragma once

#include "model/perceptron_gpu.hpp"
#include "train_step.hpp"

#include <string>
#include <vector>

// `graphs`: records the step, and repeats it, as one CUDA graph for every size of the batch; or null.
template <class T, class U>
void train_step(model::PerceptronGpu<T, U>& model, typename model::PerceptronGpu<T, U>::Sgd& optimizer,
                ddp::Reducer<T>& reducer, const data::Batch<T>& batch, std::size_t divisor,
                const model::Dropout& dropout, double learning_rate, model::StepGraphs* graphs) {
  model.load(batch, dropout, learning_rate);
  const auto step = [&] {
    model.forward();
    reducer.begin(divisor);
    model.backward([&](std::size_t parameter) { reducer.mark_ready(parameter); }, reducer.adds());
    reducer.wait();
    model.update(optimizer);
  };
  if (graphs)
    graphs->run({batch.size(), divisor}, model.stream(), step);
  else
    step();
}

// The sum of the losses of this rank's samples since the last call. Collective, called by all ranks. Throws
// std::runtime_error, on all of them, if one was not finite; it names the step, and the rank where it was one alone: a
// step later every rank's parameters are as bad.
template <class T, class U>
double take_loss(multinode::World& world, multinode::Communicator& communicator, model::PerceptronGpu<T, U>& model) {
  const model::Totals totals = model.take_totals();
  double bad = totals.bad_step > 0;
  sum_over_ranks(communicator, model, {&bad, 1});
  if (bad == 0) return totals.loss;
  const std::vector<std::string> steps =
      world.gather("first step without a loss", totals.bad_step > 0 ? std::to_string(totals.bad_step) : "");
  std::size_t first = 0, ranks = 0, rank = 0;
  for (std::size_t r = 0; r < steps.size(); ++r) {
    if (steps[r].empty()) continue;
    const std::size_t step = std::stoul(steps[r]);
    if (ranks == 0 || step < first) {
      first = step;
      ranks = 0;
      rank = r;
    }
    ranks += step == first;
  }
  throw std::runtime_error("the loss of " + (ranks == 1 ? "rank " + std::to_string(rank) : "several ranks") +
                           " is not finite in step " + std::to_string(first) + "; a smaller --learning-rate may help");
}
