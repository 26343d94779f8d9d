// messages.hpp: what the agents write into their store, as JSON.
//
// The readers check every value as if a stranger had written it: types, ranges, names that become parts of paths and
// environment variables, and that the numbers are this node's. They throw BadMessage, which names the value.
#pragma once

#include <mnrun/process_group.hpp>

#include <optional>
#include <stdexcept>
#include <string>

namespace mnrun {

class BadMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// How an attempt ended, the same on all nodes: the first verdict that a node writes into the store counts.
struct Verdict {
  int status = 0;
  std::string text;                           // "" if all processes succeeded
  bool again = false;                         // another attempt follows
  std::chrono::milliseconds kill_delay{500};  // from SIGTERM to SIGKILL
};

std::string text_of(const Agent& agent);
std::string text_of(const Attempt& attempt);
std::string text_of(const Verdict& verdict);

Agent parse_agent(const std::string& text, int node);
// `agent` is that of the node that reads it, of `nodes`.
Attempt parse_attempt(const std::string& text, const Agent& agent, int nodes);
Verdict parse_verdict(const std::string& text);

// Whether it may be the name of a run, which is part of the path of log files.
bool is_run_id(const std::string& text);

}  // namespace mnrun
