// recorder.hpp: what programs offer to look into their steps: --breakdown and --trace FILE.
#pragma once

#include "step_times.hpp"
#include "trace.hpp"

#include <multinode/communicator.hpp>
#include <multinode/report.hpp>
#include <multinode/world.hpp>

#include <optional>
#include <ostream>
#include <string>

namespace boost::program_options {
class options_description;
}

namespace ddp {

struct RecorderOptions {
  bool breakdown = false;
  std::string trace;

  void add_to(boost::program_options::options_description& known);
};

class Recorder {
 public:
  // Made by all ranks, before the first step. The communicator must outlive it. Throws UsageError: see Trace; nccl does
  // not go with --breakdown either.
  Recorder(multinode::World& world, multinode::Communicator& communicator, const RecorderOptions& options);

  // For train_step(); empty if nobody asked. This object must outlive it, and stay where it is.
  StepObserver observer();

  // Collective, called by all ranks, once, after the last step: rank 0 prints and writes what was asked for.
  void report(std::ostream& out, multinode::JsonLines& json);

 private:
  multinode::World& world_;
  RecorderOptions options_;
  Breakdown breakdown_;
  std::optional<Trace> trace_;
};

}  // namespace ddp
