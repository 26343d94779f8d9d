#include "trace.hpp"

#include <multinode/check.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <limits>
#include <mutex>
#include <span>
#include <stdexcept>
#include <vector>

namespace ddp {
namespace {

enum Track { compute, communication };

std::int64_t nanoseconds(StepTimes::Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

// On two ranks: how far rank `other`'s clock is ahead of rank 0's, and how wrong that can be, ns; known to rank 0.
struct Comparison {
  std::int64_t ahead = 0, error = 0;
};
Comparison compare_clocks(multinode::Communicator& communicator, int other) {
  constexpr int messages = 20;
  Comparison best{0, std::numeric_limits<std::int64_t>::max()};
  std::int64_t theirs = 0;
  const std::span<std::int64_t> block(&theirs, 1);
  for (int i = 0; i < messages; ++i) {
    if (communicator.rank() == 0) {
      const std::int64_t sent = nanoseconds(StepTimes::Time::clock::now());
      communicator.send(block, other);
      communicator.recv(block, other);
      const std::int64_t came = nanoseconds(StepTimes::Time::clock::now());
      if (const std::int64_t error = (came - sent + 1) / 2; error < best.error)
        best = {theirs - (sent + (came - sent) / 2), error};
    } else {
      communicator.recv(block, 0);
      theirs = nanoseconds(StepTimes::Time::clock::now());
      communicator.send(block, 0);
    }
  }
  return best;
}

// `text` of rank `other`, to rank 0.
std::string hand_over(multinode::Communicator& communicator, int other, std::string text) {
  std::uint64_t size = text.size();
  const auto pass = [&](multinode::Block block) {
    if (communicator.rank() == 0)
      communicator.recv(block, other);
    else
      communicator.send(block, 0);
  };
  pass(std::span(&size, 1));
  text.resize(size);
  pass({text.data(), text.size(), multinode::DataType::uint8});
  return text;
}

}  // namespace

struct Trace::Operations {
  std::mutex mutex;
  std::deque<Operation> list;  // since the first of the last steps
};

Trace::Trace(multinode::World& world, multinode::Communicator& communicator, const std::string& path)
    : world_(world), communicator_(communicator), path_(path), operations_(std::make_shared<Operations>()) {
  if (communicator.backend() == multinode::Backend::nccl)
    throw multinode::UsageError(
        "--trace: on GPUs the host does not see when operations begin and end: use NVIDIA's nsys profile, or --backend "
        "mpi or gloo");
  if (communicator.rank() == 0) {
    file_.open(path, std::ios::trunc);
    if (!file_) throw multinode::UsageError("--trace: cannot write " + path + ": " + std::strerror(errno));
  }
  communicator.set_observer([operations = operations_](const char* name, std::size_t bytes, Time begin, Time end) {
    const std::lock_guard lock(operations->mutex);
    operations->list.push_back({name, bytes, begin, end});
  });
}

void Trace::add(const StepTimes& step) {
  ++steps_;
  last_.push_back(step);
  if (last_.size() > kept_steps) last_.pop_front();
  const std::lock_guard lock(operations_->mutex);
  std::deque<Operation>& list = operations_->list;
  while (!list.empty() && list.front().end < last_.front().at.front()) list.pop_front();
}

// Of this rank: [[track, name, begin, end, bytes], ...], times in ns of its own clock.
std::string Trace::events() const {
  nlohmann::json list = nlohmann::json::array();
  const auto add = [&](Track track, const std::string& name, Time begin, Time end, std::size_t bytes = 0) {
    list.push_back({track, name, nanoseconds(begin), nanoseconds(end), bytes});
  };
  std::uint64_t number = steps_ - last_.size();
  for (const StepTimes& step : last_) {
    add(compute, "step " + std::to_string(++number), step.at.front(), step.at.back());
    for (std::size_t i = 0; i < StepTimes::names.size(); ++i)
      add(compute, StepTimes::names[i], step.at[i], step.at[i + 1]);
  }
  const std::lock_guard lock(operations_->mutex);
  for (const Operation& operation : operations_->list)
    add(communication, operation.name, operation.begin, operation.end, operation.bytes);
  return list.dump();
}

std::chrono::nanoseconds Trace::write() {
  communicator_.synchronize();
  const std::string mine = events();
  if (communicator_.rank() != 0) {
    compare_clocks(communicator_, communicator_.rank());
    hand_over(communicator_, communicator_.rank(), mine);
    return {};
  }
  std::vector<nlohmann::json> ranks{nlohmann::json::parse(mine)};
  std::vector<Comparison> clocks(1);
  for (int r = 1; r < communicator_.size(); ++r) {
    clocks.push_back(compare_clocks(communicator_, r));
    ranks.push_back(nlohmann::json::parse(hand_over(communicator_, r, {})));
  }
  std::int64_t start = std::numeric_limits<std::int64_t>::max(), error = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    error = std::max(error, clocks[r].error);
    for (nlohmann::json& event : ranks[r]) {
      for (const std::size_t time : {2, 3}) event[time] = event[time].get<std::int64_t>() - clocks[r].ahead;
      start = std::min(start, event[2].get<std::int64_t>());
    }
  }

  const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
  file_ << "{\"displayTimeUnit\": \"ms\",\n\"otherData\": "
        << nlohmann::json{{"clocks_agree_within_us", microseconds(error)}, {"program", world_.program()}}
        << ",\n\"traceEvents\": [";
  const char* separator = "\n";
  const auto put = [&](const nlohmann::json& event) { file_ << std::exchange(separator, ",\n") << event; };
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const auto name = [&](const char* what, int track, const std::string& called) {
      put({{"ph", "M"}, {"name", what}, {"pid", r}, {"tid", track}, {"args", {{"name", called}}}});
    };
    name("process_name", 0, "rank " + std::to_string(r) + " on " + world_.host(static_cast<int>(r)));
    name("thread_name", compute, "compute");
    name("thread_name", communication, "communication");
    for (const nlohmann::json& event : ranks[r]) {
      nlohmann::json complete{{"ph", "X"},
                              {"pid", r},
                              {"tid", event[0]},
                              {"name", event[1]},
                              {"ts", microseconds(event[2].get<std::int64_t>() - start)},
                              {"dur", microseconds(event[3].get<std::int64_t>() - event[2].get<std::int64_t>())}};
      if (event[0] == communication) complete["args"]["bytes"] = event[4];
      put(complete);
    }
  }
  file_ << "\n]}\n" << std::flush;
  if (!file_) throw std::runtime_error("--trace: cannot write " + path_ + ": " + std::strerror(errno));
  return std::chrono::nanoseconds(error);
}

}  // namespace ddp
