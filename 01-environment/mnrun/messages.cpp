#include <mnrun/messages.hpp>

#include <multinode/base/check.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>

#include <algorithm>
#include <cstdint>

namespace mnrun {

using nlohmann::json;

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Agent, node, host, pid, processes, run_id, max_restarts, master_address, master_port,
                                   hosts_store, error_status, error)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Place, rank, world_size, local_rank, local_size, node, node_count)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Attempt, master, first, store_host, error_status, error)

namespace {

struct VerdictMessage {
  int status;
  std::string text;
  bool again;
  std::int64_t kill_delay_ms;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(VerdictMessage, status, text, again, kill_delay_ms)

constexpr std::size_t longest_name = 255, longest_text = 64 << 10;
constexpr int most_processes = 4096, most_nodes = 65'536;

template <class T>
T parsed(const std::string& what, const std::string& text) try {
  const json object = multinode::parse_json(text);
  const T value = object.get<T>();
  // A number that does not fit into its member, or a member of another type or name, does not come back; and 1.0, which
  // equals 1, is another text.
  if (const json again = value; again != object || multinode::json_text(again) != multinode::json_text(object))
    throw BadMessage(what + " has a wrong value");
  return value;
} catch (const json::exception& e) {
  throw BadMessage(what + ": " + multinode::one_line(e.what()));
}

void require(bool right, const std::string& what, const char* field) {
  if (!right) throw BadMessage("a wrong " + std::string(field) + " in " + what);
}

void require_text(std::string& text, std::size_t longest, const std::string& what, const char* field) {
  text = multinode::one_line(text);
  require(text.size() <= longest, what, field);
}

bool is_status(int status) { return status >= 0 && status <= 255; }

void check(const std::string& what, Agent& agent) {
  require(agent.node >= 0 && agent.node < most_nodes, what, "node");
  require_text(agent.host, longest_name, what, "host");
  require(agent.pid >= 0, what, "pid");
  require(agent.processes >= 1 && agent.processes <= most_processes, what, "processes");
  require(agent.run_id.empty() || is_run_id(agent.run_id), what, "run_id");
  require(agent.max_restarts >= 0 && agent.max_restarts <= 1'000'000, what, "max_restarts");
  require_text(agent.master_address, longest_name, what, "master_address");
  require(std::ranges::all_of(agent.master_address,
                              [](unsigned char c) {
                                return std::isalnum(c) ||
                                       std::string_view(".-_:%").find(static_cast<char>(c)) != std::string_view::npos;
                              }),
          what, "master_address");
  require(is_status(agent.error_status), what, "error_status");
  require_text(agent.error, longest_text, what, "error");
}

}  // namespace

bool is_run_id(const std::string& text) {
  return !text.empty() && text.size() <= 200 && text[0] != '.' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == ':' || c == '@';
         });
}

std::string text_of(const Agent& agent) { return multinode::json_text(agent); }
std::string text_of(const Attempt& attempt) { return multinode::json_text(attempt); }
std::string text_of(const Verdict& v) {
  return multinode::json_text(VerdictMessage{v.status, v.text, v.again, v.kill_delay.count()});
}

Agent parse_agent(const std::string& text, int node) {
  const std::string what = "the message of the agent of node " + std::to_string(node);
  Agent agent = parsed<Agent>(what, text);
  check(what, agent);
  require(agent.node == node, what, "node");
  return agent;
}

Attempt parse_attempt(const std::string& text, const Agent& agent, int nodes) {
  const std::string what = "the attempt of node " + std::to_string(agent.node);
  Attempt attempt = parsed<Attempt>(what, text);
  check(what, attempt.master);
  require(attempt.master.node == 0, what, "master");
  require(!attempt.master.run_id.empty(), what, "run_id");
  require(!attempt.master.master_address.empty() && attempt.master.master_port != 0, what, "master_address");
  const Place& first = attempt.first;
  require(first.world_size >= 1 && first.world_size <= most_processes * most_nodes, what, "world_size");
  require(first.rank >= 0 && first.rank < first.world_size && first.local_rank == 0, what, "rank");
  require(first.node == agent.node && first.node_count == nodes, what, "node");
  require(first.local_size == agent.processes && first.local_size <= first.world_size - first.rank, what, "local_size");
  require_text(attempt.store_host, longest_text, what, "store_host");
  require(is_status(attempt.error_status), what, "error_status");
  require_text(attempt.error, longest_text, what, "error");
  return attempt;
}

Verdict parse_verdict(const std::string& text) {
  const std::string what = "the verdict";
  auto [status, reason, again, kill_delay] = parsed<VerdictMessage>(what, text);
  require(is_status(status), what, "status");
  require_text(reason, longest_text, what, "text");
  require(kill_delay >= 0 && kill_delay <= 31'536'000'000, what, "kill_delay_ms");
  return {status, reason, again, std::chrono::milliseconds(kill_delay)};
}

}  // namespace mnrun
