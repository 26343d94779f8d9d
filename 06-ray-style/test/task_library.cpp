// Functions for tasks_test.
#include "tasks/functions.hpp"

#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <thread>

void register_functions(tasks::Functions& functions) {
  functions.add("empty", [] {});
  functions.add("twice", [](std::int64_t value) { return 2 * value; });
  functions.add("area", [](double width, double height) { return width * height; });
  functions.add("pid", [] { return getpid(); });
  functions.add("sleep",
                [](int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); });
  functions.add("fail", [](const std::string& reason) -> int { throw std::runtime_error(reason); });
  functions.add("fail oddly", []() -> int { throw 1; });
  functions.add("letters", [](std::size_t count) { return std::string(count, 'x'); });
  functions.add("count", [](const std::string& text) { return text.size(); });
  functions.add("kill", [](int signal) { raise(signal); });
}
