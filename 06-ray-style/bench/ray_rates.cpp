// ray_rates: empty tasks and actor calls per second of Ray's C++ API, one client: synchronous (each result is awaited
// before the next call) and asynchronous (1,000 calls, then their results). Prints one JSON object.
// Exit status: 0 all results were right, 1 not.
#include <ray/api.h>

#include <chrono>
#include <cstdio>
#include <vector>

int empty() { return 1; }
RAY_REMOTE(empty);

class Empty {
 public:
  static Empty* create() { return new Empty(); }
  int call() { return 1; }
};
RAY_REMOTE(Empty::create, &Empty::call);

// Calls per second, `at_once` calls at a time, for at least two seconds.
template <class Call>
double rate(int at_once, bool& right, const Call& call) {
  using Clock = std::chrono::steady_clock;
  const auto start = Clock::now();
  long calls = 0;
  for (; Clock::now() - start < std::chrono::seconds(2); calls += at_once) {
    std::vector<ray::ObjectRef<int>> results;
    for (int i = 0; i < at_once; ++i) results.push_back(call());
    for (auto& result : results) right = *ray::Get(result) == 1 && right;
  }
  return double(calls) / std::chrono::duration<double>(Clock::now() - start).count();
}

int main(int argc, char** argv) {
  ray::RayConfig config;
  ray::Init(config, argc, argv);
  bool right = true;
  auto actor = ray::Actor(Empty::create).Remote();
  const auto task = [] { return ray::Task(empty).Remote(); };
  const auto call = [&] { return actor.Task(&Empty::call).Remote(); };
  ray::Get(call());
  ray::Get(task());  // both processes run now
  const double task_1 = rate(1, right, task), task_1000 = rate(1000, right, task);
  const double call_1 = rate(1, right, call), call_1000 = rate(1000, right, call);
  std::printf("{\"tasks\": [%.0f, %.0f], \"actor calls\": [%.0f, %.0f]}\n", task_1, task_1000, call_1, call_1000);
  ray::Shutdown();
  return right ? 0 : 1;
}
