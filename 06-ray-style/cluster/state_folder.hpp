// state_folder.hpp: the folder in which the daemons and the clients of a user find each other: --state DIR.
#pragma once

#include <multinode/descriptor.hpp>
#include <multinode/tcp_store.hpp>

#include <filesystem>
#include <string>
#include <vector>

#include <sys/types.h>

namespace cluster {

class StateFolder {
 public:
  // Makes the folder, with mode 0700, where there is none. Throws UsageError, naming it, where that is impossible, and
  // for one that belongs to another user or that others may look into.
  explicit StateFolder(std::filesystem::path path);
  static std::filesystem::path default_path();  // ~/.multinode-cluster

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path token() const { return path_ / "token"; }
  std::filesystem::path address() const { return path_ / "address"; }  // of the head, "host:port"

  // Throw UsageError, naming the file.
  void write_address(const multinode::Endpoint& head) const;
  multinode::Endpoint read_address() const;

 private:
  std::filesystem::path path_;
};

enum class Role { head, node };

// The file HOST-head.pid or HOST-PID.pid, locked for as long as this process, or one that it forked, lives: a file
// without a lock was left by a killed daemon. Hosts may share the folder.
class PidFile {
 public:
  // Throws UsageError where a head of this folder lives already, on this host or another that shares it.
  PidFile(const StateFolder& folder, Role role);
  ~PidFile() { remove(); }
  PidFile(const PidFile&) = delete;
  PidFile& operator=(const PidFile&) = delete;

  void remove();  // the token and the address too, where this is the head's

  std::filesystem::path log() const;  // HOST-head.log, HOST-PID.log
  int descriptor() const { return lock_.get(); }

 private:
  const StateFolder& folder_;
  std::filesystem::path path_;
  multinode::Descriptor lock_;
};

// Ends the daemons of this folder on this host, with SIGTERM, and SIGKILL after 10 s or, by `force`, at once; returns
// when they and their jobs' processes are gone, with a line about each. What killed daemons left is removed.
std::vector<std::string> stop_daemons(const StateFolder& folder, bool force);

}  // namespace cluster
