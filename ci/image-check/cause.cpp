#include "cluster.hpp"

#include "node_check/limits.hpp"

#include <multinode/base/descriptor.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <cerrno>
#include <cstring>
#include <sstream>

namespace image_check {
namespace {

// Why a connection to 127.0.0.1 fails; "": it does not.
std::string no_loopback() {
  const multinode::Descriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  const timeval patience{5, 0};
  setsockopt(client.get(), SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  const bool connected = bind(listener.get(), any, length) == 0 && listen(listener.get(), 1) == 0 &&
                         getsockname(listener.get(), any, &length) == 0 && connect(client.get(), any, length) == 0;
  if (connected) return "";
  return "this node cannot connect to 127.0.0.1 (" + std::string(std::strerror(errno)) + "): ip link set lo up";
}

// Why a command fails: the line that names a cause, else its last one. "": it does not, or takes too long to say.
std::string failure_of(const Command& command) {
  const MemoryFile log;
  const auto outcome = Processes({command}, small_machine(), log.path(), std::chrono::seconds(20)).end();
  if (outcome.exit_status == 0 || outcome.timed_out) return "";
  std::istringstream lines(log.text());
  std::string telling = "exit status " + std::to_string(outcome.exit_status);
  for (std::string line; std::getline(lines, line);) {
    const bool says_why = line.find("error while loading") != line.npos || line.find("rror:") != line.npos ||
                          line.find("cannot ") != line.npos;
    if (line.find_first_not_of(" -=") != line.npos) telling = line;
    if (says_why) break;
  }
  if (outcome.exit_status > 128) {  // killed, perhaps while it was loaded: the last file that the loader tried
    auto variables = small_machine();
    variables["LD_DEBUG"] = "libs";
    const MemoryFile loading;
    Processes({command}, variables, loading.path(), std::chrono::seconds(20)).end();
    const std::string text = loading.text(), trying = "trying file=";
    if (const auto at = text.rfind(trying); at != text.npos)
      telling += ", and the last library it loaded is " +
                 text.substr(at + trying.size(), text.find('\n', at) - at - trying.size());
  }
  return telling.substr(0, 300);
}

}  // namespace

std::string common_cause(const Cluster& cluster) {
  for (const auto& finding : node_check::look_at_limits())
    if (finding.ok != true && !finding.why.empty()) return finding.what + ": " + finding.why;
  if (const auto why = no_loopback(); !why.empty()) return why;
  for (const char* program : {"01-environment/explore", "03-message-passing/message_passing_mpi",
                              "03-message-passing/message_passing_gloo", "03-message-passing/message_passing_nccl"})
    if (const auto path = cluster.path_of(program); std::filesystem::exists(path))
      if (const auto why = failure_of({path, "--version"}); !why.empty())
        return path.filename().string() + " does not start: " + why;
  if (cluster.launcher != "mpirun") return "";
  auto words = cluster.launcher_words;
  words.insert(words.end(), {"-n", "1", "true"});
  const auto why = failure_of(words);
  return why.empty() ? "" : "'" + shell_words({}, words) + "' fails: " + why;
}

}  // namespace image_check
