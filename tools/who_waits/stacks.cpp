#include "stacks.hpp"

#include "verdict.hpp"

#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/net/address.hpp>
#include <multinode/process/child_process.hpp>

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <map>
#include <regex>
#include <set>
#include <sstream>

namespace who_waits {

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The last number of a line of /proc/THREAD/status; 0: none.
pid_t number_in(const std::string& thread, const std::string& name) {
  const std::string text = multinode::read_text("/proc/" + thread + "/status").value_or("");
  const std::size_t at = text.find(name + ":\t");
  if (at == std::string::npos) return 0;
  return std::atoi(text.c_str() + text.rfind('\t', text.find('\n', at)));
}

// What starts a program in the container of a process, because a path means another file there. {}: it is in none.
std::vector<std::string> entering(const std::string& process) {
  const auto differs = [&](const char* name) {
    return link_of(fmt::format("/proc/{}/{}", process, name)) != link_of(fmt::format("/proc/self/{}", name));
  };
  if (!differs("ns/mnt") && !differs("root")) return {};
  std::vector<std::string> command{"nsenter", "-t", process, "-m", "-r"};
  if (differs("ns/pid")) command.push_back("-p");
  if (differs("ns/user")) command.insert(command.end(), {"-U", "--preserve-credentials"});
  return command;
}

bool is_api(const std::string& name) {  // of MPI in C and Fortran, NCCL, CUDA
  static const std::regex api(R"(P?MPIX?_[A-Z]\w*|p?mpi_[a-z_]+_|nccl[A-Z]\w*|cuda[A-Z]\w*)");
  return std::regex_match(name, api);
}
bool is_of_library(const std::string& name) {  // inside such a call, if the library has debug information
  static const std::regex library(R"((ompi|opal|orte|prte|pmix|PMIx|mca|MPI[A-Z]*|uc[pst]|fi|nccl|ibv)_.*)");
  return is_api(name) || std::regex_match(name, library);
}
bool is_interpreter(const std::string& name) {
  static const std::regex python(
      R"((_?Py[A-Z_]|pymain|_?cfunction_|method_|object_|type_call|slot_tp|vectorcall|function_code|builtin_|run_mod|pyrun|run_eval).*)");
  return std::regex_match(name, python);
}

std::string leaf(const Stack& stack) {
  if (stack.empty()) return " in Python";  // where only the interpreter's functions were found
  std::string place;
  for (const Frame& frame : stack)
    if (!frame.place.empty()) place = frame.python ? frame.place + " in " + frame.function : frame.place;
  return stack.back().python ? ": " + place : " in " + stack.back().function + (place.empty() ? "" : ", " + place);
}
std::string label(const Frame& frame) {
  if (frame.python) return frame.place + " in " + frame.function;
  return frame.place.empty() ? frame.function : frame.function + " " + frame.place;
}

struct Node {
  std::set<int> ranks;
  std::map<Frame, Node> next;
};
void print(const Node& node, const std::string& path, const std::string& indent, std::vector<std::string>& lines) {
  const auto down = [&](const Frame& frame) { return path.empty() ? label(frame) : path + " > " + label(frame); };
  if (node.next.size() == 1 && node.next.begin()->second.ranks == node.ranks)
    return print(node.next.begin()->second, down(node.next.begin()->first), indent, lines);
  if (!path.empty()) lines.push_back(fmt::format("{}{}: {}", indent, rank_text(node.ranks), path));
  for (const auto& [frame, next] : node.next) print(next, label(frame), path.empty() ? indent : indent + "  ", lines);
}

}  // namespace

char state_of_threads(pid_t pid) {
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

std::string link_of(const std::filesystem::path& link) {
  std::error_code error;
  return std::filesystem::read_symlink(link, error).string();
}

std::string program_of(pid_t pid) {
  return std::filesystem::path(link_of(fmt::format("/proc/{}/exe", pid))).filename().string();
}

std::string output_of(const std::vector<std::string>& command, pid_t stops, double* stopped) {
  const multinode::Descriptor nothing(::open("/dev/null", O_RDWR | O_CLOEXEC));
  multinode::Pipe pipe = multinode::make_pipe();
  std::string text;
  const bool runs = stops && state_of_threads(stops) != 'T';
  bool cut_off = false;
  try {
    multinode::ChildProcess tool({.arguments = command,
                                  .descriptors = {nothing.get(), pipe.to.get(), nothing.get()},
                                  .own_group = true,
                                  .when_parent_dies = SIGKILL});
    pipe.to.reset();
    const Clock::time_point end = Clock::now() + 20s;
    Clock::time_point free = Clock::now();  // when it last did not stop the process
    for (char bytes[4096];;) {
      pollfd ready{pipe.from.get(), POLLIN, 0};
      if (::poll(&ready, 1, 5) > 0) {
        const ssize_t count = ::read(pipe.from.get(), bytes, sizeof bytes);
        if (count <= 0) break;
        text.append(bytes, static_cast<std::size_t>(count));
      }
      const pid_t tracer = stops ? number_in(std::to_string(stops), "TracerPid") : 0;
      const auto now = Clock::now();
      if (!tracer || ::getpgid(tracer) != tool.pid()) free = now;
      const auto lasts = now - free;
      if (stopped) *stopped = std::max(*stopped, std::chrono::duration<double>(lasts).count());
      cut_off = lasts > 900ms || now > end;
      if (cut_off) break;
    }
  } catch (const multinode::StartError&) {  // it is not installed
  }
  // The tool is dead, with all that it has started. The process runs on, also where a SIGSTOP waits for it.
  if (cut_off && runs) ::kill(stops, SIGCONT);
  return text;
}

// "work::step" of "void work::step<int>(int, double) const", and of the same with "(n=3)".
std::string short_name(std::string name) {
  static const std::regex unnamed(R"(\(anonymous namespace\)::|::operator\(\).*)"), lambda(R"(\{lambda\(.*?\)#\d+\})");
  name = std::regex_replace(std::regex_replace(name, lambda, "lambda"), unnamed, "");
  std::string out;
  for (int depth = 0; const char c : name) {
    depth += (c == '<' || c == '(') - (c == '>' || c == ')');
    if (depth == 1 && c == '(' && !out.empty()) break;
    if (depth == 0 && c != '>' && c != ')') out += c;
  }
  out.erase(out.find_last_not_of(' ') + 1);
  out.erase(0, out.rfind(' ') + 1);
  if (out.starts_with("PMPI")) out.erase(0, 1);
  if (const std::size_t at = out.find("pthread_"); at == out.find_first_not_of('_') && at != out.npos) out.erase(0, at);
  return out == "ompi_mpi_finalize" ? "MPI_Finalize" : out == "ompi_mpi_init" ? "MPI_Init" : out == "??" ? "" : out;
}

// Frames as "#4  0x00.. solve(int)" with "    /path/solver.cpp:120:3" below, or "#4  0x00.. in solve (n=3) at
// solver.cpp:120"; threads as "TID 123:" or "Thread 1 (Thread 0x.. (LWP 123) ..):". The C library's lines, as
// "./nptl/futex.c:57" and "../sysdeps/poll.c:29", are not the program's.
std::vector<Stack> parsed_stacks(const std::string& text) {
  static const std::regex thread(R"((?:TID \d+:|(Thread) \d+ .*LWP.*))"),
      frame(R"(#\d+ +(?:0x[0-9a-f]+)? ?(?:in )?(.*?)(?: at (\S+:\d+))?)"), source(R"( +(\S+?:\d+)(?::\d+)?)");
  std::vector<Stack> found;
  const auto place = [](const std::string& path) {
    static const std::regex of_c_library(R"(\.\./sysdeps/.*|\./[a-z]+/.*)");
    return std::regex_match(path, of_c_library) ? "" : path.substr(path.rfind('/') + 1);
  };
  std::istringstream lines(text);
  bool newest_first = false;  // as gdb
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (std::regex_match(line, match, thread)) {
      newest_first = match[1].matched;
      found.emplace_back();
    } else if (std::regex_match(line, match, frame)) {
      if (found.empty()) found.emplace_back();
      std::string name = match[1].str();
      name.erase(0, name.find_first_not_of(' '));
      found.back().push_back({short_name(name.substr(0, name.find('@'))), place(match[2].str())});
    } else if (std::regex_match(line, match, source) && !found.empty() && !found.back().empty()) {
      found.back().back().place = place(match[1].str());
    }
  }
  if (newest_first) std::ranges::reverse(found);
  std::vector<Stack> out;
  for (Stack& stack : found) {
    std::ranges::reverse(stack);
    if (const auto main = std::ranges::find(stack, "main", &Frame::function); main != stack.end())
      stack.erase(stack.begin(), main);
    std::erase_if(stack, [](const Frame& one) {
      static const std::regex start("|_start|__libc_start.*|_*clone3?|start_thread");
      return std::regex_match(one.function, start);
    });
    const auto api = std::ranges::find_if(stack, is_api, &Frame::function);
    const bool calls = api != stack.end();
    if (calls) {  // what is left inside of the call is the program's, such as its own reduction
      const auto inside = [](const Frame& one) { return one.place.empty() || is_of_library(one.function); };
      api->place.clear(), stack.erase(std::remove_if(api + 1, stack.end(), inside), stack.end());
    }
    while (stack.size() > 2 && stack.back().function.starts_with('_') && stack.back().place.empty() &&
           stack[stack.size() - 2].place.empty())
      stack.pop_back();  // the C library's own functions
    std::erase_if(stack, [&](const Frame& one) { return &one != &stack.back() && one.function.starts_with("std::"); });
    const bool own = calls || std::ranges::any_of(stack, [](const Frame& one) { return !one.place.empty(); });
    if (!stack.empty() && (own || out.empty())) out.push_back(std::move(stack));
  }
  return out;
}

// Threads as "Thread 123 (idle): "MainThread"", frames as "    load (hang.py:6)", the innermost first.
std::vector<Stack> parsed_python(const std::string& py_spy) {
  static const std::regex frame(R"(^ +(.+) \((?:.*/)?([^/]+:\d+)\)$)");
  std::vector<Stack> out;
  std::istringstream lines(py_spy);
  std::smatch match;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("Thread ")) out.emplace_back();
    if (!out.empty() && std::regex_match(line, match, frame))
      out.back().insert(out.back().begin(), {match[1].str(), match[2].str(), true});
  }
  std::erase_if(out, [](const Stack& one) { return one.empty(); });
  return out;
}

ProcessStacks stacks_of(pid_t pid) {
  ProcessStacks out{.pid = pid, .host = multinode::host_name()};
  const std::string number = std::to_string(pid);
  for (const std::string& thread : multinode::names_in("/proc/" + number + "/task"))
    if (const pid_t tracer = number_in(thread, "TracerPid")) {  // such as a debugger: the kernel allows one
      const std::string name = multinode::read_text(fmt::format("/proc/{}/comm", tracer)).value_or("a process");
      out.problem = fmt::format("{} (pid {}) traces it: look there, or end that first", name, tracer);
      return out;
    }
  const auto problem = [&](const std::string& text) { out.problem += (out.problem.empty() ? "" : "; ") + text; };
  if (state_of_threads(pid) == 'T')
    problem("stopped (state T), as by Ctrl-Z, SIGSTOP or a batch system: kill -CONT lets it continue");
  using Command = std::vector<std::string>;
  Command inside = entering(number);
  const bool boxed = !inside.empty();
  inside.insert(inside.end(), {"eu-stack", "-n", "256", "-s", "-p", std::to_string(number_in(number, "NSpid"))});
  const Command full{"eu-stack", "-n", "256", "-s", "-p", number}, names{"eu-stack", "-n", "256", "-p", number};
  Command gdb{"gdb", "-p", number, "-batch", "-nx", "-ex", "thread apply all bt 256"};  // it finds a container's files
  for (const char* const one : {"set debuginfod enabled off", "set print frame-arguments none"})
    gdb.insert(gdb.end(), {"-iex", one});
  for (const Command& tool : boxed ? std::vector{inside, gdb, full} : std::vector{full, names, gdb}) {
    out.threads = parsed_stacks(output_of(tool, pid, &out.stopped));
    if (out.threads.empty()) continue;
    if (boxed && tool == full)
      problem(
          "the files of its container could not be read, so names may be wrong: use sudo, or install eu-stack there");
    break;
  }
  const bool python = !out.threads.empty() && std::ranges::any_of(out.threads[0], is_interpreter, &Frame::function);
  std::vector<Stack> lines;
  if (python) lines = parsed_python(output_of({"py-spy", "dump", "--nonblocking", "-p", number}));
  if (!lines.empty()) {
    const Stack native = std::move(out.threads[0]);
    out.threads = {std::move(lines.front())};  // of the main thread
    if (!native.empty() && is_api(native.back().function))
      out.threads[0].push_back({native.back().function, "", false});
  } else if (python) {
    std::erase_if(out.threads[0], [](const Frame& one) { return is_interpreter(one.function); });
    problem("for Python's lines, install py-spy");
  }
  if (out.threads.empty())
    problem(state_of_threads(pid) == 'D' ? "in the kernel (state D), as for a file system that does not answer"
            : out.stopped > 0.85         ? "its stack could not be read within a second: install eu-stack (elfutils)"
                                 : "no stack: eu-stack (elfutils) or gdb is not installed, or may not look into "
                                   "it (see /proc/sys/kernel/yama/ptrace_scope)");
  return out;
}

std::string stack_line(const ProcessStacks& process) {
  if (process.threads.empty() || process.threads[0].empty()) return "";
  std::vector<std::string> names;
  for (const Frame& frame : process.threads[0])
    names.insert(names.begin(), frame.python ? label(frame) : frame.function);
  return fmt::format("in {}", fmt::join(names, " <- "));
}

std::string outside_line(const ProcessStacks& process) {
  const auto outside = [](const Stack& stack) { return stack.empty() || !is_api(stack.back().function); };
  const auto found = std::ranges::find_if(process.threads, outside);
  return found == process.threads.end() ? "" : leaf(*found);
}

std::vector<std::string> tree(const std::vector<ProcessStacks>& ranks) {
  std::map<std::string, std::set<int>> groups, problems;
  Node root;
  for (const ProcessStacks& one : ranks) {
    if (!one.problem.empty()) problems[one.problem].insert(one.rank);
    for (const Stack& stack : one.threads) {
      groups[leaf(stack) + (&stack == &one.threads[0] ? "" : ", in another thread")].insert(one.rank);
      Node* node = &root;
      node->ranks.insert(one.rank);
      for (const Frame& frame : stack) {
        node = &node->next[frame];
        node->ranks.insert(one.rank);
      }
    }
  }
  std::vector<std::pair<std::string, std::set<int>>> sorted(groups.begin(), groups.end());
  std::ranges::stable_sort(sorted, {},
                           [](const auto& one) { return std::pair(one.second.size(), *one.second.begin()); });
  std::vector<std::string> lines;
  const auto add = [&](const std::set<int>& members, const std::string& text) {
    lines.push_back(rank_text(members) + text);
    if (members.size() > 1) return;
    const auto one = std::ranges::find(ranks, *members.begin(), &ProcessStacks::rank);
    lines.back() += fmt::format("   ({}, pid {})", one->host, one->pid);
  };
  for (const auto& [problem, members] : problems) add(members, ": " + problem);
  for (const auto& [text, members] : sorted) add(members, text);
  if (!root.next.empty()) print(root, "", "  ", lines);
  return lines;
}

}  // namespace who_waits
