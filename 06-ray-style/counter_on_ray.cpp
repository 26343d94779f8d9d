// counter_on_ray: a Ray actor, an object that lives in a process of the cluster and keeps its state between calls.
// Exit status: 0 if the counter has the right value and refuses a negative amount, 1 if not.
// SPDX-License-Identifier: Apache-2.0
#include <ray/api.h>

#include <cstdio>
#include <stdexcept>

class Counter {
 public:
  static Counter* create(int start) { return new Counter(start); }
  int add(int amount) {
    if (amount < 0) throw std::invalid_argument("a counter only grows");
    return value_ += amount;
  }

 private:
  explicit Counter(int start) : value_(start) {}
  int value_;
};
RAY_REMOTE(Counter::create, &Counter::add);

int main(int argc, char** argv) {
  ray::RayConfig config;
  ray::Init(config, argc, argv);
  auto counter = ray::Actor(Counter::create).Remote(10);
  ray::ObjectRef<int> last;
  for (int i = 1; i <= 4; ++i) last = counter.Task(&Counter::add).Remote(i);  // an actor runs its calls in order
  const int value = *ray::Get(last);
  bool refused = false;
  try {
    ray::Get(counter.Task(&Counter::add).Remote(-1));
  } catch (const ray::internal::RayTaskException&) {
    refused = true;  // the exception of the call came back
  }
  const bool right = value == 20 && refused;
  std::printf("10 + 1 + 2 + 3 + 4 = %d\n%s\n", value, right ? "RIGHT" : "WRONG");
  ray::Shutdown();
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("counter_on_ray: standard output"), 1;
  return right ? 0 : 1;
}
