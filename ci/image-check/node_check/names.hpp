// names.hpp: whether the nodes know each other by name, and let each other in.
#pragma once

#include "finding.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace node_check {

struct Resolved {
  std::string host;
  std::vector<std::string> addresses;
  std::string error;          // why there are none
  bool loopback = false;      // the first of them is this machine's own
  std::string name, unnamed;  // of the first address; or why it has none
};

// Asks for the name's addresses, and for the first address's name: getaddrinfo and getnameinfo, on another thread, as
// they have no deadline.
Resolved resolve(const std::string& host, std::chrono::milliseconds timeout);

// As node `own` sees it. Where there is no other node, a name without an address is no fault.
Finding judge_names(const std::string& own, const std::vector<Resolved>& all);

// Logs in to each host in turn with ssh, and runs true there. Nothing is asked; what hangs is killed.
Finding log_in(const std::vector<std::string>& hosts, std::chrono::seconds timeout = std::chrono::seconds(10));

}  // namespace node_check
