#include "trace.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <limits>
#include <mutex>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace ddp {
namespace {

enum Track { compute, communication };

std::int64_t nanoseconds(StepTimes::Time time) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

}  // namespace

struct Trace::Operations {
  struct One {
    const char* name;
    std::size_t bytes;
    StepTimes::Time begin, end;
  };
  std::mutex mutex;
  std::deque<One> list;  // since the first of the last steps
};

Trace::Trace(multinode::World& world, multinode::Communicator& communicator, const std::string& path)
    : world_(world), communicator_(communicator), path_(path), operations_(std::make_shared<Operations>()) {
  if (world.rank() == 0) {
    try {
      file_ = multinode::open_in_place(path, false);
    } catch (const std::system_error& why) {
      throw multinode::UsageError(std::string("--trace: ") + why.what());
    }
  }
  communicator.set_observer([operations = operations_](const char* name, std::size_t bytes, auto begin, auto end) {
    const std::lock_guard lock(operations->mutex);
    operations->list.push_back({name, bytes, begin, end});
  });
}

void Trace::add(const StepTimes& step) {
  ++steps_;
  last_.push_back(step);
  if (last_.size() > kept_steps) last_.pop_front();
  const std::lock_guard lock(operations_->mutex);
  auto& list = operations_->list;
  while (!list.empty() && list.front().end < last_.front().at.front()) list.pop_front();
}

std::chrono::nanoseconds Trace::write() {
  // This rank's events, as the format has them, but with the beginning ("ts") in ns of this rank's clock.
  nlohmann::json events = nlohmann::json::array(), barriers = nlohmann::json::array();
  const auto name = [&](const char* what, Track track, const std::string& called) {
    events.push_back(
        {{"ph", "M"}, {"name", what}, {"pid", world_.rank()}, {"tid", track}, {"args", {{"name", called}}}});
  };
  const auto add = [&](Track track, const std::string& what, auto begin, auto end, std::size_t bytes = 0) {
    events.push_back({{"ph", "X"},
                      {"pid", world_.rank()},
                      {"tid", track},
                      {"name", what},
                      {"ts", nanoseconds(begin)},
                      {"dur", std::chrono::duration<double, std::micro>(end - begin).count()},
                      {"args", {{"bytes", bytes}}}});
  };
  name("process_name", compute, "rank " + std::to_string(world_.rank()) + " on " + world_.host(world_.rank()));
  name("thread_name", compute, "compute");
  name("thread_name", communication, "communication");
  std::uint64_t number = steps_ - last_.size();
  for (const StepTimes& step : last_) {
    add(compute, "step " + std::to_string(++number), step.at.front(), step.at.back());
    for (std::size_t i = 0; i < StepTimes::names.size(); ++i)
      add(compute, StepTimes::names[i], step.at[i], step.at[i + 1]);
  }
  {
    const std::lock_guard lock(operations_->mutex);
    for (const auto& operation : operations_->list)
      add(communication, operation.name, operation.begin, operation.end, operation.bytes);
  }
  // At some moment all ranks are in the barrier. On each clock it lies between the barrier's beginning and end.
  for (int i = 0; i < 20; ++i) {
    const auto begin = StepTimes::Time::clock::now();
    communicator_.barrier();
    barriers.push_back({nanoseconds(begin), nanoseconds(StepTimes::Time::clock::now())});
  }
  const auto texts = world_.gather("trace", nlohmann::json{events, barriers}.dump());
  if (world_.rank() != 0) return {};

  nlohmann::json all = nlohmann::json::array();
  std::int64_t start = std::numeric_limits<std::int64_t>::max(), largest_error = 0;
  for (std::size_t r = 0; r < texts.size(); ++r) {
    nlohmann::json rank = nlohmann::json::parse(texts[r]);
    std::int64_t ahead = 0, error = std::numeric_limits<std::int64_t>::max();  // of its clock, to rank 0's
    for (std::size_t i = 0; i < barriers.size(); ++i) {
      const std::int64_t begin = rank[1][i][0], end = rank[1][i][1], begin_0 = barriers[i][0], end_0 = barriers[i][1];
      const std::int64_t off = (end - begin + end_0 - begin_0) / 2;
      if (off < error) error = off, ahead = (begin + end) / 2 - (begin_0 + end_0) / 2;
    }
    if (r > 0) largest_error = std::max(largest_error, error);
    for (nlohmann::json& event : rank[0]) {
      if (event.contains("ts")) {
        event["ts"] = event["ts"].get<std::int64_t>() - ahead;
        start = std::min(start, event["ts"].get<std::int64_t>());
      }
      all.push_back(std::move(event));
    }
  }
  const auto microseconds = [](std::int64_t ns) { return static_cast<double>(ns) / 1e3; };
  for (nlohmann::json& event : all)
    if (event.contains("ts")) event["ts"] = microseconds(event["ts"].get<std::int64_t>() - start);
  const nlohmann::json trace{{"displayTimeUnit", "ms"},
                             {"otherData", {{"clocks_agree_within_us", microseconds(largest_error)}}},
                             {"traceEvents", all}};
  try {
    multinode::write_all(file_.get(), trace.dump() + '\n', path_);
  } catch (const std::system_error& why) {
    throw std::runtime_error(std::string("--trace: ") + why.what());
  }
  return std::chrono::nanoseconds(largest_error);
}

}  // namespace ddp
