#include "queues.hpp"

#include "stacks.hpp"
#include "verdict.hpp"

#include <multinode/base/text.hpp>

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <regex>
#include <tuple>

namespace who_waits {

namespace {

// What MPI shows of a communicator does not always tell two apart: then `id` has the bit uncertain_id.
struct Known {
  std::uint64_t id = 0;
  std::map<std::int32_t, std::int32_t> ranks{};  // in MPI_COMM_WORLD, by the rank in the communicator
  bool twice = false;                            // two processes have the same rank in it
};
std::string key_of(const QueuedCommunicator& one, int rank) {
  const bool alone = one.size == 1 && one.members.empty();
  return fmt::format("{} {} {}", one.name, alone ? -rank : one.size, multinode::join(one.members));
}
std::map<std::string, Known> communicators_of(const std::vector<ProcessStacks>& processes) {
  std::map<std::string, Known> all;
  for (const ProcessStacks& process : processes)
    for (const QueuedCommunicator& one : process.queues.communicators) {
      Known& known = all[key_of(one, process.rank)];
      if (!known.ranks.emplace(one.rank, process.rank).second) known.twice = true;
      const bool complete = !one.members.empty() || known.ranks.size() == static_cast<std::size_t>(one.size);
      known.id = std::hash<std::string>{}(key_of(one, process.rank)) | uncertain_id;
      if (complete && !known.twice) known.id &= ~uncertain_id;
      if (one.name == "MPI_COMM_WORLD") known.id = world_id;
    }
  return all;
}

Call call_of(const QueuedMessage& message, const QueuedCommunicator& in, const Known& known) {
  Call call{.kind = message.queue == Queue::sends ? Kind::MPI_Isend : Kind::MPI_Irecv,
            .peer = message.peer,
            .tag = message.tag < 0 ? any : message.tag,
            .communicator = known.id,
            .bytes = unknown_size};
  if (const auto at = static_cast<std::size_t>(message.peer); message.peer < 0)
    call.peer = any;
  else if (at < in.members.size())
    call.peer = in.members[at];
  else if (known.ranks.contains(message.peer) && !known.twice)
    call.peer = known.ranks.at(message.peer);
  else if (known.id != world_id)
    call.peer = unknown;
  return call;
}

// "mpi_recv_" of Fortran, "MPI_Recv_c"; none: it is no call of MPI.
Kind kind_of(std::string name) {
  static const std::regex ending("_c$|_$");
  name = std::regex_replace(name, ending, "");
  for (const auto& call : calls)
    if (::strcasecmp(call.name, name.c_str()) == 0) return static_cast<Kind>(&call - calls.data());
  return Kind::none;
}

// The call that a thread is in. Which of several pending messages it waits for is not known, so it may be any of them.
Wait wait_of(Kind kind, const std::vector<Call>& messages, const std::vector<Call>& sent_to_others, bool alone) {
  static const std::regex returns("MPI_(Test|Im?probe|I[bsr]?send|I.?recv|Start).*"), probes("MPI_M?[Pp]robe");
  const std::string name = name_of(kind);
  const Role role = role_of(kind);
  Wait wait{.call = {.kind = kind}, .some = true};
  if (kind == Kind::MPI_Finalize) wait.call.communicator = end_id, wait.some = false;
  if (std::regex_match(name, returns) || std::regex_match(name, probes)) return wait;
  for (const Call& one : messages)
    if (role == Role::both || role == Role::wait_all || role == Role::wait_any || role == role_of(one.kind))
      wait.requests.push_back(one);
  if (role == Role::send && wait.requests.empty()) wait.requests = sent_to_others;
  if (alone && wait.requests.size() == 1 && (role == Role::send || role == Role::receive)) {
    wait.call = wait.requests[0], wait.call.kind = kind;
    wait.requests.clear(), wait.some = false;
  }
  return wait;
}

}  // namespace

std::filesystem::path queue_reader() {
  return std::filesystem::path(link_of("/proc/self/exe")).replace_filename("who_waits_queues");
}

Queues queues_of(pid_t pid, const std::filesystem::path& reader) {
  if (::access(reader.c_str(), X_OK) != 0) return {.problem = "who_waits was built without libdw (Debian's libdw-dev)"};
  try {
    return unpacked<Queues>(output_of({reader, std::to_string(pid)}));
  } catch (const std::exception&) {
    return {.problem = "they changed while they were read, or the MPI's library for debuggers failed: try again"};
  }
}

std::vector<RankState> states_of(const std::vector<ProcessStacks>& ranks, double seconds) {
  const std::map<std::string, Known> known = communicators_of(ranks);
  const auto of = [&](const QueuedCommunicator& one, int rank) -> const Known& { return known.at(key_of(one, rank)); };
  // Of a message that is sent, its sender shows it or its receiver, or both. By sender, communicator, receiver and tag.
  std::map<std::tuple<int, std::uint64_t, int, int>, std::array<std::uint64_t, 2>> sent;
  std::map<int, std::vector<Call>> messages, not_received;  // by rank; not_received: that others have from it
  for (const ProcessStacks& one : ranks)
    for (const QueuedCommunicator& in : one.queues.communicators)
      for (const QueuedMessage& message : in.messages) {
        Call call = call_of(message, in, of(in, one.rank));
        if (message.queue == Queue::unexpected) {
          ++sent[{call.peer, call.communicator, one.rank, call.tag}][1];
          call.kind = Kind::MPI_Isend;
          not_received[std::exchange(call.peer, one.rank)].push_back(call);
        } else {
          if (message.queue == Queue::sends) ++sent[{one.rank, call.communicator, call.peer, call.tag}][0];
          call.sequence = messages[one.rank].size() + 1;
          messages[one.rank].push_back(call);
        }
      }
  std::vector<RankState> states;
  for (const ProcessStacks& one : ranks) {
    RankState state{
        .rank = one.rank, .host = one.host, .pid = one.pid, .recorded = true, .process = one.process, .quiet = seconds};
    const auto in_call = [](const Stack& stack) {
      return !stack.empty() && kind_of(stack.back().function) != Kind::none;
    };
    const auto in_calls = std::ranges::count_if(one.threads, in_call);
    for (const Stack& stack : one.threads) {
      if (!in_call(stack)) continue;
      Wait wait = wait_of(kind_of(stack.back().function), messages[one.rank], not_received[one.rank], in_calls == 1);
      if (one.moves) wait.some = true, wait.requests.clear();
      for (const Frame& frame : stack)
        if (!frame.place.empty()) wait.place = frame.place;
      wait.seconds = seconds;
      state.waits.push_back(std::move(wait));
    }
    state.other_thread = in_calls > 0 && in_calls < std::ssize(one.threads);
    state.stack = in_calls ? outside_line(one) : stack_line(one);
    for (const QueuedCommunicator& in : one.queues.communicators)
      state.communicators.push_back(
          {.id = of(in, one.rank).id, .size = in.size, .rank = in.rank, .made = 1, .name = in.name});
    state.outstanding = messages[one.rank];
    for (const auto& [key, numbers] : sent)
      if (const auto& [from, communicator, to, tag] = key; from == one.rank)
        state.traffic.push_back(
            {.communicator = communicator, .peer = to, .tag = tag, .sent = std::ranges::max(numbers)});
    states.push_back(std::move(state));
  }
  return states;
}

}  // namespace who_waits
