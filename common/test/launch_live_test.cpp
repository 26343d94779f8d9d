// read_launch under the launchers that are installed on this machine, and under nested ones.
#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include <unistd.h>

namespace multinode::testing {
namespace {

using namespace std::chrono_literals;

std::vector<std::string> sorted_lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  std::sort(lines.begin(), lines.end());
  return lines;
}

bool on_path(const std::string& program) {
  std::istringstream path(std::getenv("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (std::filesystem::exists(std::filesystem::path(folder) / program)) return true;
  return false;
}

bool has_open_mpi() {
  return is_open_mpi() && run({"bash", "-c", "\"$0\" --version", under_mpirun(1, {})[0]}).status == 0;
}

std::string torchrun() { return in_torch("torchrun"); }

// The sorted lines that `argv` prints; its exit status must be 0.
std::vector<std::string> printed_by(std::vector<std::string> argv,
                                    const std::map<std::string, std::string>& environment = {}) {
  const Result result = run(std::move(argv), environment);
  EXPECT_EQ(result.status, 0) << result.all();
  return sorted_lines(result.out);
}

using Lines = std::vector<std::string>;

// With the variables of a batch script and of a pod around mpirun. (A real sbatch makes mpirun ask Slurm for its nodes:
// environments/open-mpi-4-in-sbatch.env is from one.)
TEST(LaunchLive, OpenMpiAmongOuterVariables) {
  if (!has_open_mpi()) GTEST_SKIP() << "no Open MPI, or built with another";
  Lines lines = printed_by(
      under_mpirun(3, {PATH_launch_print}),
      {{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"PET_NNODES", "2"}});
  std::string local_ranks;  // Open MPI 5 gives them in any order
  for (std::string& line : lines)
    if (const std::size_t at = line.find("local "); at != std::string::npos) {
      local_ranks += line[at + 6];
      line[at + 6] = '*';
    }
  std::sort(local_ranks.begin(), local_ranks.end());
  EXPECT_EQ(local_ranks, "012");
  EXPECT_EQ(lines, (Lines{"Open MPI: rank 0/3 local */3 node -/- mpi", "Open MPI: rank 1/3 local */3 node -/- mpi",
                          "Open MPI: rank 2/3 local */3 node -/- mpi"}));
}

TEST(LaunchLive, Mpich) {
  if (!on_path("mpirun.mpich")) GTEST_SKIP() << "no MPICH (apt install mpich)";
  EXPECT_EQ(printed_by({"mpirun.mpich", "-n", "2", PATH_launch_print}),
            (Lines{"MPICH: rank 0/2 local 0/2 node -/- mpi", "MPICH: rank 1/2 local 1/2 node -/- mpi"}));
}

TEST(LaunchLive, Torchrun) {
  if (!std::filesystem::exists(torchrun())) GTEST_SKIP() << "no " << torchrun();
  EXPECT_EQ(printed_by({torchrun(), "--standalone", "--nproc-per-node", "2", "--no-python", PATH_launch_print}),
            (Lines{"torchrun: rank 0/2 local 0/2 node 0/1 agent", "torchrun: rank 1/2 local 1/2 node 0/1 agent"}));
}

// Two agents, each a rank of mpirun.
TEST(LaunchLive, TorchrunInsideMpirun) {
  if (!std::filesystem::exists(torchrun())) GTEST_SKIP() << "no " << torchrun();
  if (!has_open_mpi()) GTEST_SKIP() << "no Open MPI, or built with another";
  EXPECT_EQ(printed_by(under_mpirun(
                2, {torchrun(), "--nnodes", "2", "--nproc-per-node", "2", "--rdzv-backend", "c10d", "--rdzv-id",
                    "launch-live-" + std::to_string(getpid()), "--rdzv-endpoint",
                    "127.0.0.1:" + std::to_string(20'000 + getpid() % 9'000), "--no-python", PATH_launch_print})),
            (Lines{"torchrun: rank 0/4 local 0/2 node 0/2 agent", "torchrun: rank 1/4 local 1/2 node 0/2 agent",
                   "torchrun: rank 2/4 local 0/2 node 1/2 agent", "torchrun: rank 3/4 local 1/2 node 1/2 agent"}));
}

}  // namespace
}  // namespace multinode::testing
