// world.hpp: all processes of one run: their rendezvous, the check that they belong together, the watchdog.
//
// It is above the communicator's library, not part of it: Gloo and NCCL have no rendezvous of their own, MPI's has no
// deadline, and whoever is missing can only be named by somebody who does not wait for him in the same library.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/launch.hpp>
#include <multinode/world/watchdog.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace multinode {

class TcpStore;

class World {
 public:
  struct Options {
    std::chrono::milliseconds timeout{60'000};  // deadline of every blocking wait
    std::string rendezvous;                     // "": by the launcher; or "tcp:HOST:PORT", "file:PATH"
    bool same_versions = true;                  // all ranks must have the versions of rank 0
  };

  // Collective: called by all ranks. Connects to the others: through the launcher's store (mnrun, cluster, torchrun),
  // through MPI if MPI started the processes, else at the master's address. Throws UsageError or StoreTimeout if that
  // fails. Then checks that every rank is present exactly once, with the same program, world size and versions(). If
  // not, it ends the process with one line that names the ranks that are missing or differ. It sets SIGPIPE to ignored.
  World(std::string program, Launch launch, Options options);
  // With this process's environment and the default options. `program` is the name in messages.
  explicit World(std::string program);

  // Collective. If an exception destroys it, it ends the process and reports to the others that this rank failed.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return launch_.rank.value; }
  int size() const { return launch_.world_size.value; }
  int local_rank() const { return launch_.local_rank.value; }
  int node_rank() const;  // nodes are numbered in the order of their lowest ranks
  int node_count() const;
  int local_size() const;
  const std::string& host(int rank) const;  // for the thread that made the World; may ask the store
  const std::string& program() const { return program_; }
  const Launch& launch() const { return launch_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  // The store, with the keys of this attempt only. For the thread that made the World.
  TcpStore& store();
  Watchdog& watchdog();

  // These are collective and go through the store: they are for texts at the start and the end of a run, not for data.
  // `name`, the same on all ranks, is for messages and must outlive the World. They throw std::logic_error on rank 0 if
  // a rank is in one of another name.
  // Returns what rank 0 makes of every rank's `value`, in order of rank; `combine` is called on rank 0 only.
  using Combine = std::function<std::string(std::vector<std::string> values)>;
  std::string combine_on_rank_0(const char* name, const std::string& value, const Combine& combine);
  // Returns every rank's `value`, in order of rank, on rank 0, and nothing on the others.
  std::vector<std::string> gather_on_rank_0(const char* name, const std::string& value);
  // The same on every rank: ranks x ranks values travel, so prefer the others where there may be many ranks.
  std::vector<std::string> gather(const char* name, const std::string& value);
  // Returns rank 0's `value`.
  std::string broadcast(const char* name, const std::string& value) {
    return combine_on_rank_0(name, rank() == 0 ? value : "", [&](auto) { return value; });
  }
  void barrier(const char* name) { broadcast(name, ""); }

 private:
  struct Implementation;
  std::string program_;
  Launch launch_;
  Options options_;
  std::unique_ptr<Implementation> implementation_;
};

// (name, version) of the program and its libraries: MPI, NCCL, CUDA ... A World compares them.
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace multinode
