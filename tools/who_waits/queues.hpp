// queues.hpp: the message queues of a process: its pending sends and receives, and messages that no receive has taken.
// MPIs have a library that shows them to debuggers (libompi_dbg_msgq.so, libtvmpich.so), with the interface "MPI
// message queue access", mqs_*. The program who_waits_queues loads that library, so that who_waits survives a crash.
#pragma once

#include "packing.hpp"

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace who_waits {

enum class Queue : std::int32_t { sends, receives, unexpected };  // as the interface numbers them

struct QueuedMessage {
  Queue queue = Queue::sends;
  std::int32_t peer = 0, tag = 0;  // its rank in the communicator; any
  auto operator<=>(const QueuedMessage&) const = default;
};
struct QueuedCommunicator {
  std::string name{};
  std::int32_t rank = 0, size = 0;
  std::vector<std::int32_t> members{};  // their ranks in MPI_COMM_WORLD; empty: MPI does not tell
  std::vector<QueuedMessage> messages{};
  bool operator==(const QueuedCommunicator&) const = default;
  static void fields(auto& visit, auto& one) { visit(one.name, one.rank, one.size, one.members, one.messages); }
};
struct Queues {
  std::string problem{};  // why they could not be read
  std::vector<QueuedCommunicator> communicators{};
  bool operator==(const Queues&) const = default;
  static void fields(auto& visit, auto& one) { visit(one.problem, one.communicators); }
};

// Stops nothing, and takes 5 s at most: `reader` is the program who_waits_queues, and is killed then.
Queues queues_of(pid_t pid, const std::filesystem::path& reader);
std::filesystem::path queue_reader();  // beside this program, where it was built

struct ProcessStacks;
struct RankState;
// What the ranks do by their stacks and queues, for explain(). `seconds`: for how long it has been so.
std::vector<RankState> states_of(const std::vector<ProcessStacks>& ranks, double seconds);

}  // namespace who_waits
