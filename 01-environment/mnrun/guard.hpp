// guard.hpp: ends the process groups of a mnrun that is killed.
#pragma once

#include <multinode/base/descriptor.hpp>

#include <sys/types.h>

namespace mnrun {

// The kernel kills the processes of a killed mnrun, but not what they have started. A small process does: it waits for
// the end of mnrun, and then kills what is left in the groups that it was told of. It has a session and a name of its
// own, so that what kills mnrun by its name or its group does not reach it.
class Guard {
 public:
  Guard();   // to be made before mnrun starts a thread; throws std::system_error
  ~Guard();  // ends the process
  Guard(const Guard&) = delete;

  void watch(pid_t group) const { tell(group); }
  void forget_all() const { tell(0); }  // before their leaders are reaped: then their numbers are used again

 private:
  void tell(pid_t group) const;

  multinode::Descriptor connection_;
  pid_t process_;
};

}  // namespace mnrun
