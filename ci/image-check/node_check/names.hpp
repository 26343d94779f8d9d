// names.hpp: whether the nodes know each other by name, and let each other in.
#pragma once

#include "finding.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace node_check {

struct Resolved {
  std::string host;
  std::vector<std::string> addresses{};
  std::string error{};    // why there are none
  bool loopback = false;  // the first of them is this machine's own
};

// Asks for the name's addresses. getaddrinfo has no deadline, so another thread calls it.
Resolved resolve(const std::string& host, std::chrono::milliseconds timeout);

// Judges what node `own` resolved. On a single node, a name without an address is no fault.
Finding judge_names(const std::string& own, const std::vector<Resolved>& all);

// Runs `true` on each host in turn with ssh, which may not ask questions. Kills an ssh that does not end in time.
Finding log_in(const std::vector<std::string>& hosts, std::chrono::seconds timeout = std::chrono::seconds(10));

}  // namespace node_check
