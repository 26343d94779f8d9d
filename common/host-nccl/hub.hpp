// hub.hpp: where the ranks of a communicator meet, and their calls: in the process that made the unique id. It compares
// what the ranks call, does what they ask for once all have, and says on stderr who is waited for.
#pragma once

#include <memory>
#include <string>

namespace host_nccl {

class Hub {
 public:
  // Listens. Null, with the reason in `error`: it cannot.
  static std::shared_ptr<Hub> make(std::string& error);
  virtual ~Hub() = default;
  virtual const std::string& id() const = 0;  // "host-nccl HOST:PORT SECRET": all that a rank needs to find it
  virtual void close() = 0;                   // nobody will come any more
};

// The first word of every id.
inline constexpr const char* id_mark = "host-nccl";

// At the end of the process: waits, no longer than the deadline, for ranks of other processes that still need the hubs
// of this one, whose own ranks have all left in peace.
void wait_for_guests();

// Of this process, to tell ranks of it from others.
const std::string& process_token();

}  // namespace host_nccl
