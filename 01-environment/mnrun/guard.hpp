// guard.hpp: ends the process groups of a mnrun that is killed.
#pragma once

#include <multinode/base/descriptor.hpp>

#include <sys/types.h>

namespace mnrun {

// When mnrun is killed, the kernel kills its processes, but not what they have started. The guard is a small process
// that waits for the end of mnrun and then kills the process groups that it was told of. It has its own session and
// name, so that it survives a kill of mnrun's process group or by mnrun's name.
class Guard {
 public:
  Guard();   // to be made when mnrun ignores SIGPIPE and has no thread yet; throws std::system_error
  ~Guard();  // ends the process
  Guard(const Guard&) = delete;

  void watch(pid_t group) const { send(group); }
  void forget_all() const { send(0); }  // before their leaders are reaped: then their numbers are used again

 private:
  void send(pid_t group) const;

  multinode::Descriptor pipe_;
  pid_t process_;
};

}  // namespace mnrun
