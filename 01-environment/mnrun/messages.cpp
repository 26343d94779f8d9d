#include <mnrun/messages.hpp>

#include <multinode/base/text.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace mnrun {

using nlohmann::json;

namespace {

constexpr std::size_t longest_name = 255, longest_text = 64 << 10;
constexpr int most_processes = 4096, most_nodes = 65'536, most_ranks = most_processes * most_nodes;

// The fields of a message. `what` is its name in errors.
class Fields {
 public:
  Fields(std::string what, const json& object) : what_(std::move(what)), object_(object) {
    if (!object.is_object()) throw BadMessage(what_ + " is not an object");
  }
  Fields inner(const char* name) const { return {what_ + "'s " + name, at(name)}; }

  template <class Integer>
  void number(const char* name, Integer& to, std::int64_t least, std::int64_t most) const {
    const json& value = at(name);
    const bool fits = value.is_number_integer() &&
                      (!value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= std::uint64_t(std::numeric_limits<std::int64_t>::max()));
    if (!fits || value.get<std::int64_t>() < least || value.get<std::int64_t>() > most) wrong(name);
    to = static_cast<Integer>(value.get<std::int64_t>());
  }
  void text(const char* name, std::string& to, std::size_t longest) const {
    const json& value = at(name);
    if (!value.is_string()) wrong(name);
    to = multinode::one_line(value.get<std::string>());
    if (to.size() > longest) wrong(name);
  }
  void truth(const char* name, bool& to) const {
    if (!at(name).is_boolean()) wrong(name);
    to = at(name).get<bool>();
  }
  [[noreturn]] void wrong(const char* name) const { throw BadMessage("a wrong " + std::string(name) + " in " + what_); }

 private:
  const json& at(const char* name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) throw BadMessage("no " + std::string(name) + " in " + what_);
    return *found;
  }
  std::string what_;
  const json& object_;
};

json parsed(const std::string& what, const std::string& text) {
  json object = json::parse(text, nullptr, false);  // at most max_value bytes
  if (object.is_discarded()) throw BadMessage(what + " is no JSON");
  return object;
}

void read_fields(const Fields& fields, Agent& agent) {
  fields.number("node", agent.node, 0, most_nodes - 1);
  fields.text("host", agent.host, longest_name);
  fields.number("pid", agent.pid, 0, std::numeric_limits<pid_t>::max());
  fields.number("processes", agent.processes, 1, most_processes);
  fields.text("run_id", agent.run_id, longest_name);
  if (!agent.run_id.empty() && !is_run_id(agent.run_id)) fields.wrong("run_id");
  fields.number("max_restarts", agent.max_restarts, 0, 1'000'000);
  fields.text("master_address", agent.master_address, longest_name);
  if (!std::all_of(agent.master_address.begin(), agent.master_address.end(), [](unsigned char c) {
        return std::isalnum(c) || c == '.' || c == '-' || c == '_' || c == ':' || c == '%';
      }))
    fields.wrong("master_address");
  fields.number("master_port", agent.master_port, 0, 65'535);
  fields.truth("hosts_store", agent.hosts_store);
  fields.number("error_status", agent.error_status, 0, 255);
  fields.text("error", agent.error, longest_text);
}

void read_fields(const Fields& fields, Place& place) {
  fields.number("world_size", place.world_size, 1, most_ranks);
  fields.number("rank", place.rank, 0, place.world_size - 1);
  fields.number("local_rank", place.local_rank, 0, 0);
  fields.number("local_size", place.local_size, 1, place.world_size - place.rank);
  fields.number("node_count", place.node_count, 1, most_nodes);
  fields.number("node", place.node, 0, place.node_count - 1);
}

json json_of(const Agent& a) {
  return {{"node", a.node},
          {"host", a.host},
          {"pid", a.pid},
          {"processes", a.processes},
          {"run_id", a.run_id},
          {"max_restarts", a.max_restarts},
          {"master_address", a.master_address},
          {"master_port", a.master_port},
          {"hosts_store", a.hosts_store},
          {"error_status", a.error_status},
          {"error", a.error}};
}

json json_of(const Place& p) {
  return {{"rank", p.rank}, {"world_size", p.world_size}, {"local_rank", p.local_rank}, {"local_size", p.local_size},
          {"node", p.node}, {"node_count", p.node_count}};
}

// Bytes that are no UTF-8, as in the name of a program, are replaced.
std::string dumped(const json& object) { return object.dump(-1, ' ', false, json::error_handler_t::replace); }

}  // namespace

bool is_run_id(const std::string& text) {
  return !text.empty() && text.size() <= 200 && text[0] != '.' &&
         std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == ':' || c == '@';
         });
}

std::string text_of(const Agent& agent) { return dumped(json_of(agent)); }

std::string text_of(const Attempt& attempt) {
  return dumped({{"master", json_of(attempt.master)},
                 {"first", json_of(attempt.first)},
                 {"store_host", attempt.store_host},
                 {"error_status", attempt.error_status},
                 {"error", attempt.error}});
}

std::string text_of(const Verdict& v) {
  return dumped({{"status", v.status}, {"text", v.text}, {"again", v.again}, {"kill_delay_ms", v.kill_delay.count()}});
}

Agent parse_agent(const std::string& text, int node) {
  const std::string what = "the message of the agent of node " + std::to_string(node);
  const json object = parsed(what, text);
  const Fields fields(what, object);
  Agent agent;
  read_fields(fields, agent);
  if (agent.node != node) fields.wrong("node");
  return agent;
}

Attempt parse_attempt(const std::string& text, const Agent& agent, int nodes) {
  const std::string what = "the attempt of node " + std::to_string(agent.node);
  const json object = parsed(what, text);
  const Fields fields(what, object);
  Attempt attempt;
  read_fields(fields.inner("master"), attempt.master);
  if (attempt.master.node != 0) fields.wrong("master");
  if (!is_run_id(attempt.master.run_id)) fields.wrong("run_id");
  if (attempt.master.master_address.empty() || attempt.master.master_port == 0) fields.wrong("master_address");
  read_fields(fields.inner("first"), attempt.first);
  const Place& first = attempt.first;
  if (first.node != agent.node || first.node_count != nodes) fields.wrong("node");
  if (first.local_size != agent.processes) fields.wrong("local_size");
  fields.text("store_host", attempt.store_host, longest_text);
  fields.number("error_status", attempt.error_status, 0, 255);
  fields.text("error", attempt.error, longest_text);
  return attempt;
}

Verdict parse_verdict(const std::string& text) {
  const std::string what = "the verdict";
  const json object = parsed(what, text);
  const Fields fields(what, object);
  Verdict verdict;
  fields.number("status", verdict.status, 0, 255);
  fields.text("text", verdict.text, longest_text);
  fields.truth("again", verdict.again);
  std::int64_t kill_delay = 0;
  fields.number("kill_delay_ms", kill_delay, 0, 31'536'000'000);
  verdict.kill_delay = std::chrono::milliseconds(kill_delay);
  return verdict;
}

}  // namespace mnrun
