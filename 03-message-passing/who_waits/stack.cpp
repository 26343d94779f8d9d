#include "stack.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/deadline.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/process/child_process.hpp>

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <regex>
#include <sstream>

namespace who_waits {

char process_state(pid_t pid) {
  char found = '?';
  const std::filesystem::path tasks = "/proc/" + std::to_string(pid) + "/task";
  for (const std::string& task : multinode::names_in(tasks)) {
    const std::string text = multinode::read_text(tasks / task / "stat").value_or("");
    const std::size_t name_end = text.rfind(") ");
    if (name_end == std::string::npos) continue;
    const char state = text[name_end + 2];
    if (state == 'R') return state;
    if (found == '?' || state == 'D') found = state;
  }
  return found;
}

std::string output_of(const std::vector<std::string>& command, std::chrono::seconds limit) {
  int ends[2];
  multinode::check_errno(::pipe2(ends, O_CLOEXEC), "pipe2");
  const multinode::Descriptor out(ends[0]);
  multinode::Descriptor in(ends[1]);
  const multinode::Descriptor null(::open("/dev/null", O_RDWR | O_CLOEXEC));
  std::string text;
  try {
    multinode::ChildCommand start{.arguments = command};
    start.descriptors = {null.get(), in.get(), null.get()};
    start.own_group = true;
    const multinode::ChildProcess child(start);
    in = multinode::Descriptor();
    multinode::Deadline deadline(limit);
    for (char piece[4096]; !deadline.passed();) {
      pollfd waits{out.get(), POLLIN, 0};
      if (::poll(&waits, 1, static_cast<int>(deadline.left().count())) <= 0) continue;
      const ssize_t got = ::read(out.get(), piece, sizeof piece);
      if (got <= 0) break;
      text.append(piece, static_cast<std::size_t>(got));
    }
  } catch (const multinode::StartError&) {
    return "";
  }
  return text;
}

std::string stack_of(pid_t pid) {
  using namespace std::chrono_literals;
  std::string text = output_of({"eu-stack", "-p", std::to_string(pid), "-n", "12", "-1"}, 10s);
  if (text.empty())
    text = output_of(
        {"gdb", "-p", std::to_string(pid), "-batch", "-nx", "-iex", "set debuginfod enabled off", "-ex", "bt 12"}, 20s);
  static const std::regex frame(
      R"(^#\d+\s+(?:0x[0-9a-f]+\s+)?(?:in\s+)?((?:\(anonymous namespace\)::)?[A-Za-z_~][\w:~]*))");
  std::istringstream lines(text);
  std::string line, stack;
  for (std::smatch found; std::getline(lines, line);)
    if (std::regex_search(line, found, frame)) {
      std::string name = found[1].str();
      name.erase(name.find_last_not_of(' ') + 1);
      stack += (stack.empty() ? "in " : " <- ") + name;
      if (name == "main") break;
    }
  return stack;
}

}  // namespace who_waits
