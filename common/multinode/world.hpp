// world.hpp: all processes of one run, once they have met: the rendezvous, the proof of the wiring, the watchdog.
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
    std::chrono::milliseconds timeout{60'000};  // of every blocking wait
    std::string rendezvous;                     // "" (as the launcher says), "tcp:HOST:PORT" or "file:PATH"
    bool same_versions = true;                  // refuse ranks with other versions than rank 0's
  };

  // Collective, called by all ranks. Meets the others: through the launcher's store (mnrun, cluster, torchrun), through
  // MPI, where MPI started the processes, else at the master's address. Then proves the wiring: every rank is there,
  // once, with the same program and world size and the same version of everything in versions(). Throws UsageError or
  // StoreTimeout, naming the ranks that are missing or differ.
  World(std::string program, Launch launch, Options options);

  // Collective. With an exception in flight it ends the process, and the others learn that this rank failed.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const { return launch_.rank.value; }
  int size() const { return launch_.world_size.value; }
  int local_rank() const { return launch_.local_rank.value; }
  int node_rank() const;  // nodes are numbered by their lowest rank
  int node_count() const;
  int local_size() const;
  const std::string& host(int rank) const;
  const std::string& program() const { return program_; }
  const Launch& launch() const { return launch_; }
  std::chrono::milliseconds timeout() const { return options_.timeout; }

  // Of this run and this restart alone. For the thread that made the World.
  Store& store();
  Watchdog& watchdog();

  // Every rank's `value`, in order of rank, on every rank, through the store. Collective; `name` is the same on all
  // ranks. For a few kilobytes at the start and the end of a run, not for data.
  std::vector<std::string> gather(const char* name, const std::string& value);
  void barrier(const char* name) { gather(name, ""); }

 private:
  struct Implementation;
  std::string program_;
  Launch launch_;
  Options options_;
  std::unique_ptr<Implementation> implementation_;
};

// Version of this program's parts, by name: program, MPI, NCCL, CUDA ...; what the wiring proof compares.
std::vector<std::pair<std::string, std::string>> versions();

}  // namespace multinode
