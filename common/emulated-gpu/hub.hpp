// hub.hpp: the hub of a communicator, in the process that created the unique id. The ranks send it their calls. It
// compares them, executes a call when all ranks have made it, and reports late ranks on stderr.
#pragma once

#include <memory>
#include <string>

namespace emulated_gpu {

class Hub {
 public:
  // Starts to listen. Returns null, with the reason in `error`, if it cannot.
  static std::shared_ptr<Hub> make(std::string& error);
  virtual ~Hub() = default;
  virtual const std::string& id() const = 0;  // "emulated-gpu HOST:PORT SECRET": all that a rank needs to find it
};

// The first word of every id.
inline constexpr const char* id_mark = "emulated-gpu";

// At exit: waits, at most until the deadline, while ranks of other processes still need a hub of this process whose own
// ranks have left without an error.
void wait_for_guests();

// Identifies this process, to distinguish its ranks from those of others.
const std::string& process_token();

}  // namespace emulated_gpu
