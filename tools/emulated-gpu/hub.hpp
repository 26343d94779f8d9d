// hub.hpp: the hub of a communicator, in the process that created the unique id. The ranks send it their calls. It
// compares them, executes a call when all ranks have made it, and reports late ranks on stderr.
#pragma once

#include <string>

namespace emulated_gpu {

// Starts a hub. Returns its id, "emulated-gpu HOST:PORT SECRET", with which ranks find it. Throws NcclError.
std::string start_hub();

// The first word of every id.
inline constexpr const char* id_mark = "emulated-gpu";

// At exit: waits, at most until the deadline, while ranks of other processes still need a hub of this process whose own
// ranks have left without an error.
void wait_for_guests();

// Identifies this process, to distinguish its ranks from those of others.
const std::string& process_token();

}  // namespace emulated_gpu
