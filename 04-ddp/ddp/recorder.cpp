#include "recorder.hpp"

#include <multinode/check.hpp>
#include <multinode/program_options.hpp>

#include <nlohmann/json.hpp>

#include <cmath>

namespace ddp {

void RecorderOptions::add_to(boost::program_options::options_description& known) {
  namespace po = boost::program_options;
  known.add_options()                                                                                   //
      ("breakdown", po::bool_switch(&breakdown), "print what part of a step each of its phases takes")  //
      ("trace", po::value(&trace)->value_name("FILE"),
       "write the last steps of all ranks, for chrome://tracing or https://ui.perfetto.dev");
}

Recorder::Recorder(multinode::World& world, multinode::Communicator& communicator, const RecorderOptions& options)
    : world_(world), options_(options) {
  if (options.breakdown && communicator.backend() == multinode::Backend::nccl)
    throw multinode::UsageError(
        "--breakdown: on GPUs the host only queues the work: use NVIDIA's nsys profile, or --backend mpi or gloo");
  if (!options.trace.empty()) trace_.emplace(world, communicator, options.trace);
}

StepObserver Recorder::observer() {
  if (!options_.breakdown && !trace_) return {};
  return [this](const StepTimes& step) {
    if (options_.breakdown) breakdown_.add(step);
    if (trace_) trace_->add(step);
  };
}

void Recorder::report(std::ostream& out, multinode::JsonLines& json) {
  if (options_.breakdown) {
    const std::vector<Breakdown::Line> lines = breakdown_.over_ranks(world_);
    if (world_.rank() == 0 && !lines.empty()) {
      print(out, lines);
      json.write({{"steps", breakdown_.steps()}, {"breakdown", json_of(lines)}});
    }
  }
  if (!trace_) return;
  const double error = std::chrono::duration<double, std::micro>(trace_->write()).count();
  if (world_.rank() == 0)
    out << "trace: " << options_.trace << ", the clocks of all ranks within " << std::lround(error) << " us\n";
}

}  // namespace ddp
