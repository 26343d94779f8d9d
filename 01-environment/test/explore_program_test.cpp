// explore as a user runs it.
#include <test/support/json_lines.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <algorithm>

namespace explore_program_test {

using namespace multinode::testing;
using nlohmann::json;

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
void expect_result(const std::string& file, std::size_t ranks, const std::string& launcher) {
  const std::vector<json> lines = json_lines(file);
  ASSERT_EQ(lines.size(), ranks + 2);
  EXPECT_EQ(lines[0]["fingerprint"]["world_size"], ranks);
  EXPECT_EQ(lines[0]["fingerprint"]["nodes"], 1);
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
    const Result result = run({PATH_mnrun, "--standalone", "--nproc-per-node", "3", "sh", "-c", script, "sh", "--json",
                               folder / option, "--require-equal", option});
    EXPECT_EQ(result.status, status) << result.all();
    EXPECT_SAYS(result.out, "differs: program: rank 1 ");
    EXPECT_EQ(occurrences(result.err, "explore: not equal: program: rank 1 "), std::size_t(status)) << result.err;
    EXPECT_EQ(json_lines(folder / option).back().at("failures").size(), std::size_t(status));
  }
}

TEST(Explore, Alone) {
  const TemporaryFolder folder;
  const Result result = run(command({"--json", folder / "result"}));
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.out, "1 process on 1 node, launcher: none\n");
  expect_result(folder / "result", 1, "none");
}

TEST(Explore, UnderMnrun) {
  for (const int ranks : {4, 1, 7}) {
    const TemporaryFolder folder;
    const Result result = under_mnrun(ranks, {"--json", folder / "result", "--require-equal", "kernel,libc"});
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.out, ", launcher: mnrun; rank from RANK, world_size from WORLD_SIZE, ");
    EXPECT_SAYS(result.out, "equal: kernel: all have ");
    expect_result(folder / "result", std::size_t(ranks), "mnrun");
  }
}

TEST(Explore, RunsInAFolderWhoseNameIsNoUtf8) {
  const TemporaryFolder folder;
  const std::string here = folder / "essai-\xe9";
  ASSERT_TRUE(std::filesystem::create_directory(here));
  const Result result = run({"env", "-C", here, PATH_explore, "--json", "result"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_EQ(json_lines(here + "/result").at(1).at("folder"), (folder / "essai-\uFFFD").string());
}

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
