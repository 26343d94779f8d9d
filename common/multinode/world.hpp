// world.hpp: all processes of one run: their rendezvous, the check that they belong together, the watchdog.
#pragma once

#include <multinode/launch.hpp>
#include <multinode/store.hpp>
#include <multinode/watchdog.hpp>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

namespace multinode {

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
  const std::string& host(int rank) const;
  const std::string& program() const { return program_; }
  const Launch& launch() const { return launch_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  // The store, with the keys of this run and restart only. For the thread that made the World.
  Store& store();
  Watchdog& watchdog();

  // Collective. Returns every rank's `value`, in order of rank, on every rank. `name`, the same on all ranks, is for
  // messages and must outlive the World. Goes through the store: for a few kilobytes at the start and the end of a run,
  // not for data.
  std::vector<std::string> gather(const char* name, const std::string& value);
  void barrier(const char* name) { gather(name, ""); }

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
