// explore as a user runs it.
#include <testing/emulated_gpu.hpp>
#include <testing/faults.hpp>
#include <testing/json_lines.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <nlohmann/json.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>

namespace explore_program_test {

using namespace multinode::testing;
using nlohmann::json;
using namespace std::chrono_literals;

std::vector<std::string> command(std::vector<std::string> options) {
  options.insert(options.begin(), PATH_explore);
  return options;
}

Result under_mnrun(int ranks, std::vector<std::string> options) {
  std::vector<std::string> argv{PATH_mnrun, "--standalone", "--nproc-per-node", std::to_string(ranks)};
  const std::vector<std::string> program = command(std::move(options));
  argv.insert(argv.end(), program.begin(), program.end());
  return run(argv);
}

// The result file of `ranks` processes: fingerprint, one line per process, verdict.
void expect_result(const std::string& file, std::size_t ranks, std::size_t nodes, const std::string& launcher) {
  const std::vector<json> lines = json_lines(file);
  ASSERT_EQ(lines.size(), ranks + 2);
  EXPECT_EQ(lines[0]["fingerprint"]["world_size"], ranks);
  EXPECT_EQ(lines[0]["fingerprint"]["nodes"], nodes);
  std::vector<pid_t> pids;
  for (std::size_t rank = 0; rank < ranks; ++rank) {
    const json& process = lines[rank + 1];
    EXPECT_EQ(process["rank"], rank);
    EXPECT_EQ(process["world_size"], ranks);
    EXPECT_EQ(process["launcher"], launcher);
    EXPECT_GE(process["cpu"]["count"], 1);
    pids.push_back(process["pid"]);
  }
  std::sort(pids.begin(), pids.end());
  EXPECT_EQ(std::unique(pids.begin(), pids.end()), pids.end()) << "each process reports itself";
  EXPECT_EQ(lines.back()["failures"], json::array());
}

TEST(Explore, ReportsAnotherBuild) {
  const TemporaryFolder folder;
  const std::string other = folder / "explore";  // the same program, but for its build ID
  ASSERT_EQ(run({"objcopy", "--remove-section", ".note.gnu.build-id", PATH_explore, other}).status, 0);
  for (const auto& [option, status] : {std::pair("libc", 0), std::pair("program", 1)}) {
    const std::string script =
        "if [ \"$RANK\" = 1 ]; then exec '" + other + "' \"$@\"; fi; exec '" PATH_explore "' \"$@\"";
    const Result result =
        run({PATH_mnrun, "--standalone", "--nproc-per-node", "3", "sh", "-c", script, "sh", "--require-equal", option});
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.out, "differs: program: rank 1 ");
    EXPECT_EQ(occurrences(result.err, "explore: not equal: program: rank 1 "), std::size_t(status)) << result.err;
  }
}

TEST(Explore, Alone) {
  const TemporaryFolder folder;
  const Result result = run(command({"--json", folder / "result"}));
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "1 process on 1 node, launcher: none\n");
  expect_result(folder / "result", 1, 1, "none");
}

TEST(Explore, UnderMpirun) {
#ifndef MULTINODE_HAVE_MPI
  GTEST_SKIP() << "this build has no MPI";
#endif
  const std::string variable = mpi_rank_variable();
  const std::string launcher = is_open_mpi() ? "Open MPI" : "MPICH";
  for (const int ranks : {4, 1, 7}) {
    const TemporaryFolder folder;
    const Result result =
        run(under_mpirun(ranks, command({"--json", folder / "result", "--require-equal", "program"})));
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.out, ", launcher: " + launcher + "; rank from " + variable + ", ");
    expect_result(folder / "result", std::size_t(ranks), 1, launcher);
  }
}

TEST(Explore, UnderMnrun) {
  for (const int ranks : {4, 1, 7}) {
    const TemporaryFolder folder;
    const Result result = under_mnrun(ranks, {"--json", folder / "result", "--require-equal", "kernel,libc"});
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.out, ", launcher: mnrun; rank from RANK, world_size from WORLD_SIZE, ");
    EXPECT_SAYS(result.out, "equal: kernel: all have ");
    expect_result(folder / "result", std::size_t(ranks), 1, "mnrun");
  }
}

// Two agents on this machine, with 2 and 1 processes, play two nodes.
TEST(Explore, OnTwoNodes) {
  const TemporaryFolder folder;
  const FreePort port;
  const std::string meeting = "--rdzv-endpoint=127.0.0.1:" + std::to_string(port.number());
  const auto agent = [&](const std::string& rank, const std::string& processes) {
    const std::string node = "--node-rank=" + rank, each = "--nproc-per-node=" + processes;
    return std::vector<std::string>{PATH_mnrun, "--nnodes=2", meeting,  node,
                                    each,       PATH_explore, "--json", folder / "result"};
  };
  Process first(agent("0", "2")), second(agent("1", "1"));
  const Result head = first.wait(), other = second.wait();
  EXPECT_EQ(head.status, 0) << head.all();
  EXPECT_EQ(other.status, 0) << other.all();
  EXPECT_SAYS(head.out, "3 processes on 2 nodes, launcher: mnrun");
  EXPECT_EQ(other.out, "") << "only rank 0 prints";
  expect_result(folder / "result", 3, 2, "mnrun");
}

TEST(Explore, ReportsAMissingFileOrLibrary) {
  const TemporaryFolder folder;
  const Result result = under_mnrun(2, {"--require-file", "/nowhere/at/all", "--require-library", "libabsent.so.9",
                                        "--require-library", "libc.so.6", "--json", folder / "result"});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.err, "explore: file /nowhere/at/all is missing everywhere: No such file or directory\n");
  EXPECT_SAYS(result.err, "explore: library libabsent.so.9 is missing everywhere: ");
  EXPECT_EQ(occurrences(result.err, "libc.so.6"), 0u) << result.err;
  const std::vector<json> lines = json_lines(folder / "result");
  ASSERT_EQ(lines.size(), 4u);
  ASSERT_EQ(lines[3]["failures"].size(), 2u);
  EXPECT_EQ(lines[3]["failures"][0], "file /nowhere/at/all is missing everywhere: No such file or directory");
}

TEST(Explore, WrongOptionsAreRefused) {
  const std::pair<std::vector<std::string>, std::string> wrong[] = {
      {{"--require-equal", "kernel,colour"}, "unknown item 'colour'; the items are launcher, program, mpi, "},
      {{"--require-equal", ""}, "--require-equal"},
      {{"--since", "-3"}, "--since"},
      {{"--since", "soon"}, "since"},
      {{"--require"}, "require"},
      {{"stray"}, "only options are expected"},
      {{"--json", "/nowhere/at/all"}, "/nowhere/at/all"}};
  for (const auto& [options, text] : wrong) {
    const Result result = run(command(options));
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_SAYS(result.err, text);
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
    EXPECT_EQ(result.out, "");
  }
}

TEST(Explore, PrintsTheTimeOfTheFirstBarrier) {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  const Result result =
      under_mnrun(4, {"--since", std::to_string(std::chrono::duration_cast<std::chrono::nanoseconds>(since).count())});
  EXPECT_EQ(result.status, 0) << result.all();
  std::smatch found;
  ASSERT_TRUE(std::regex_search(result.out, found, std::regex(R"(passed the first barrier ([0-9.]+) ms after)")))
      << result.all();
  const double ms = std::stod(found[1]);
  EXPECT_GT(ms, 0);
  EXPECT_LT(ms, result.seconds.count() * 1000 + 1000);
  RecordProperty("first_barrier_ms", found[1].str());
}

#ifdef EMULATED_GPU
TEST(Explore, SeveralGpusAndWhichOfThemReachEachOther) {
  const TemporaryFolder folder;
  const Result result = run(command({"--json", folder / "result"}), on_emulated_gpus(3));
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "direct access from 0 to each: - rank 0 rank 0\n");
  EXPECT_SAYS(result.out, "direct access from 2 to each: rank 0 rank 0 -\n");
  EXPECT_EQ(json_lines(folder / "result").at(1).at("gpus").at("peers"),
            json::parse("[[null,0,0],[0,null,0],[0,0,null]]"));
  EXPECT_EQ(occurrences(run(command({}), on_emulated_gpus(1)).out, "direct access"), 0u);
}
#endif

TEST(Explore, DoesNotPrintSecrets) {
  const TemporaryFolder folder;
  const Result result = run(command({"--json", folder / "result"}),
                            {{"MULTINODE_TEST_SECRET", "hunter2"}, {"KUBERNETES_SERVICE_HOST", "hunter2"}});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "kubernetes (found KUBERNETES_SERVICE_HOST)");
  const std::string file = text_of(folder / "result");
  EXPECT_EQ(occurrences(result.all() + file, "hunter2"), 0u);
  EXPECT_EQ(occurrences(result.all() + file, "MULTINODE_TEST_SECRET"), 0u);
}

}  // namespace explore_program_test
