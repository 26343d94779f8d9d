// stack.hpp: what a process does that is in no recorded call.
#pragma once

#include <multinode/base/files.hpp>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/types.h>

#include <cstdio>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

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

// The functions of a stack that gdb or eu-stack printed: "in work <- step <- main". A long one has its middle left out:
// a library's own functions, inside of the call that the program made.
inline std::string names_of(const std::string& text) {
  static const std::regex frame(
      R"(^#\d+\s+(?:0x[0-9a-f]+\s+)?(?:in\s+)?(?!in\s)((?:\(anonymous namespace\)::)?[A-Za-z_~][\w:~]*))");
  std::istringstream lines(text);
  std::vector<std::string> names;
  std::string line;
  for (std::smatch found; std::getline(lines, line) && (names.empty() || names.back() != "main");)
    if (std::regex_search(line, found, frame)) names.push_back(found[1].str());
  if (names.size() > 12) {
    names.erase(names.begin() + 5, names.end() - 6);
    names.insert(names.begin() + 5, "...");
  }
  return names.empty() ? "" : fmt::format("in {}", fmt::join(names, " <- "));
}

// "" if neither tool is there or allowed.
inline std::string stack_of(pid_t pid) {
  const std::string text = output_of(fmt::format("eu-stack -n 64 -1 -p {}", pid));
  return names_of(!text.empty() ? text
                                : output_of(fmt::format(
                                      "gdb -p {} -batch -nx -iex 'set debuginfod enabled off' -ex 'bt 64'", pid)));
}

}  // namespace who_waits
