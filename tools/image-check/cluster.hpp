// cluster.hpp: the nodes that are checked, and how programs are started on them.
#pragma once

#include "process.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>
#include <string>
#include <vector>

namespace boost::program_options {
class options_description;
}

namespace image_check {

struct Head;  // results.hpp

struct Cluster {
  std::string launcher;      // what kind: mpirun, srun or mnrun
  Command launcher_words{};  // its program, and options that it is given, such as --container-image=X
  std::vector<std::string> nodes;
  bool local = true;  // the only node is this machine, and needs no name
  int processes_per_node = 2;
  int gpus = 0;                    // that programs can use here, as chapter 01's explore says
  std::string no_gpu = "no GPU";   // why there are none
  double busy = 1;                 // how many times as long this node needs for work because of others' work
  nlohmann::json explored{};       // explore's JSON line on this machine; null: it failed
  std::filesystem::path examples;  // with 01-environment, 02-mpi ... in it

  std::string launcher_command() const;  // program and its options, as --launcher takes them

  // CHAPTER/PROGRAM in the examples; image-check/PROGRAM beside this program.
  std::filesystem::path path_of(const std::string& program) const;

  // What starts `program` on these nodes.
  Command launch(const std::vector<std::string>& on, int per_node, const Command& program,
                 const Variables& variables) const;
};

struct ClusterOptions {
  std::string launcher = "auto";   // or a launcher and its options
  std::vector<std::string> hosts;  // none: those of the job (Slurm, PBS), or this machine
  int processes_per_node = 0;      // 0: GPUs, or cores up to 4, at least 2
  std::string examples;            // "": where this program lies
  boost::program_options::options_description description();
};
// auto, mnrun, srun, or mpirun, which is also mpiexec, /opt/mpich/bin/mpirun and, where several MPIs are installed,
// mpirun.mpich; "" for all others.
std::string kind_of_launcher(const std::string& program);
// "srun --mpi=pmix" as words. Throws multinode::UsageError unless the first one is a launcher.
Command read_launcher(const std::string& text);
// `of_site`: the launcher in place of auto. Throws multinode::UsageError, naming what is missing and what to do.
Cluster find_cluster(const ClusterOptions& options, const std::string& of_site = "");

// How many times as long 50 ms of work of so many threads take here, now, as they would alone.
double measure_busy(int threads);

// What programs need on small machines, in containers and as root; for all that is started. It changes nothing that the
// user has set, and nothing that the image must provide.
Variables small_machine();

// Where one process has the whole node: its threads may use all cores.
Variables whole_node();

// In which variables the nodes' processes differ, with what to do: what is slow then is no node's fault.
std::vector<std::string> environment_differences(const Cluster& cluster, std::chrono::seconds limit);

// Fills machine, versions and settings with what explore and the system say of this machine, the first node. Settings
// are those that steer MPI, NCCL, UCX, OpenMP and the kernel; nothing whose name sounds like a secret.
void describe_machine(Head& head, const Cluster& cluster);

// One thing that is wrong with this node, and fails many checks. What a program of MPI, Gloo or NCCL needs before it
// can do anything: limits, shared memory, temporary space, the loopback interface, its libraries, the launcher. In a
// few words, with what to do; "": nothing of that is wrong.
std::string common_cause(const Cluster& cluster);

}  // namespace image_check
