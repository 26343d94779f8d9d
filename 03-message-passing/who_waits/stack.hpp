// stack.hpp: what a process does that is in no recorded call.
#pragma once

#include <multinode/base/files.hpp>

#include <fmt/format.h>
#include <sys/types.h>

#include <cstdio>
#include <regex>
#include <sstream>
#include <string>

namespace who_waits {

// R, S, D, T ... as in /proc: R if any thread runs; '?': there is no such process.
inline char process_state(pid_t pid) {
  char found = '?';
  const std::filesystem::path tasks = fmt::format("/proc/{}/task", pid);
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

inline std::string quoted(const std::string& text) {  // for the shell
  return "'" + std::regex_replace(text, std::regex("'"), R"('\'')") + "'";
}
// The standard output of a command of the shell, which is killed after 20 s.
inline std::string output_of(const std::string& command) {
  std::string text;
  if (std::FILE* const out = ::popen(("timeout -s KILL 20 " + command + " 2> /dev/null < /dev/null").c_str(), "re")) {
    for (int c = 0; (c = std::fgetc(out)) != EOF;) text += static_cast<char>(c);
    ::pclose(out);
  }
  return text;
}

// "in work() <- step() <- main()", by gdb or eu-stack; "" if neither is there or allowed.
inline std::string stack_of(pid_t pid) {
  std::string text = output_of(fmt::format("eu-stack -n 12 -1 -p {}", pid));
  if (text.empty())
    text = output_of(fmt::format("gdb -p {} -batch -nx -iex 'set debuginfod enabled off' -ex 'bt 12'", pid));
  static const std::regex frame(
      R"(^#\d+\s+(?:0x[0-9a-f]+\s+)?(?:in\s+)?((?:\(anonymous namespace\)::)?[A-Za-z_~][\w:~]*))");
  std::istringstream lines(text);
  std::string line, stack;
  for (std::smatch found; std::getline(lines, line);)
    if (std::regex_search(line, found, frame)) {
      stack += (stack.empty() ? "in " : " <- ") + found[1].str();
      if (found[1] == "main") break;
    }
  return stack;
}

}  // namespace who_waits
