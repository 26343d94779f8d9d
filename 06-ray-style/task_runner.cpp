// task_runner LIBRARY: the job of a pool of tasks (tasks/pool.hpp): runs the functions of a library of the job folder.
// Exit status: 0 the pool needs it no more, 1 the pool is gone, 2 no such library, or not started as a job.
#include "tasks/runner.hpp"

#include <multinode/address.hpp>
#include <multinode/check.hpp>
#include <multinode/descriptor.hpp>
#include <multinode/launch.hpp>
#include <multinode/socket.hpp>

#include <nlohmann/json.hpp>

#include <arpa/inet.h>
#include <dlfcn.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <charconv>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>

using multinode::Descriptor;
using multinode::UsageError;

namespace {

std::string variable(const multinode::Environment& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end())
    throw UsageError(std::string(name) + " is not set: task_runner is a job, started by a tasks::Pool");
  return found->second;
}

Descriptor descriptor(const multinode::Environment& environment, const char* name) {
  const std::string text = variable(environment, name);
  int fd = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), fd);
  if (error != std::errc() || end != text.data() + text.size() || fd < 3)
    throw UsageError(std::string(name) + " is no file descriptor: " + text);
  return Descriptor(fd);
}

std::string read_line(int fd) {
  std::string line;
  for (char c = 0; line.size() < 1000 && read(fd, &c, 1) == 1 && c != '\n';) line += c;
  return line;
}

void report(int fd, const nlohmann::json& object) {
  const std::string line = object.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  multinode::check_errno(write(fd, line.data(), line.size()), "write a report");
}

// The address by which this node reaches the head's network, where the pool is too. Nothing is sent.
std::string own_address(const std::string& store) {
  const auto head = multinode::parse_endpoint(store, "CLUSTER_STORE");
  std::string error;
  const auto addresses = multinode::detail::resolve(head, AI_ADDRCONFIG, error);
  if (!addresses) throw std::runtime_error("CLUSTER_STORE: " + error);
  const Descriptor fd(multinode::check_errno(socket(addresses->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0), "socket"));
  multinode::check_errno(connect(fd.get(), addresses->ai_addr, addresses->ai_addrlen), "connect to " + head.host);
  sockaddr_storage own{};
  socklen_t size = sizeof own;
  multinode::check_errno(getsockname(fd.get(), reinterpret_cast<sockaddr*>(&own), &size), "getsockname");
  char text[NI_MAXHOST];
  if (const int failed =
          getnameinfo(reinterpret_cast<sockaddr*>(&own), size, text, sizeof text, nullptr, 0, NI_NUMERICHOST))
    throw std::runtime_error(std::string("getnameinfo: ") + gai_strerror(failed));
  return text;
}

using Library = std::unique_ptr<void, int (*)(void*)>;

Library open_library(const std::filesystem::path& folder, const std::string& name) {
  if (folder.empty()) throw UsageError("task_runner is started by its path: libraries are looked for beside it");
  if (name.empty() || name.front() == '.' || name.find('/') != std::string::npos)
    throw UsageError("'" + name + "' is no library: it is a plain file name, of a file in the job folder");
  Library library(dlopen((folder / name).c_str(), RTLD_NOW | RTLD_LOCAL), dlclose);
  if (!library) throw UsageError(std::string("cannot load the library: ") + dlerror());
  return library;
}

bool serve(const std::filesystem::path& folder, const std::string& name, const multinode::Environment& environment,
           int report_fd) {
  const Library library = open_library(folder, name);
  const auto fill = reinterpret_cast<decltype(&register_functions)>(dlsym(library.get(), "register_functions"));
  if (!fill) throw UsageError(name + " has no register_functions: it is no library of tasks (tasks/functions.hpp)");
  tasks::Functions functions;
  fill(functions);

  const std::string secret = read_line(descriptor(environment, "CLUSTER_SECRET_FD").get());
  if (secret.empty()) throw UsageError("CLUSTER_SECRET_FD holds no secret");
  const std::string address = own_address(variable(environment, "CLUSTER_STORE"));
  tasks::Runner runner(functions, address, secret, [](const std::string& line) { std::cerr << line + "\n"; });
  report(report_fd, {{"tasks", multinode::to_string(multinode::Endpoint{address, runner.port()})},
                     {"host", multinode::host_name()}});
  return runner.wait();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 2) throw UsageError("usage: task_runner LIBRARY, a file of the job folder");
    const auto environment = multinode::current_environment();
    const Descriptor report_fd = descriptor(environment, "CLUSTER_REPORT_FD");
    try {
      if (serve(std::filesystem::path(argv[0]).parent_path(), argv[1], environment, report_fd.get())) return 0;
      throw std::runtime_error("the client of this runner is gone");
    } catch (const std::exception& e) {
      report(report_fd.get(), {{"error", e.what()}});
      throw;
    }
  } catch (const UsageError& e) {
    std::cerr << "task_runner: " << e.what() << "\n";
    return multinode::exit_usage;
  } catch (const std::exception& e) {
    std::cerr << "task_runner: " << e.what() << "\n";
    return multinode::exit_wrong;
  }
}
