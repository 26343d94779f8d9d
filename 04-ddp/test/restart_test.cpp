// Training that is stopped, killed or out of disk, and resumes: the programs as a user runs them, on small data sets of
// their own.
#include "fashion_mnist_ways.hpp"
#include "idx_files.hpp"
#include "small_disk.hpp"

#include <sys/stat.h>

#include <fcntl.h>
#include <unistd.h>

#include <cmath>
#include <iostream>
#include <memory>
#include <random>
#include <regex>

namespace restart_test {

namespace fs = std::filesystem;

// What the program says of the end, and nothing that depends on time.
struct Outcome {
  std::string parameters, loss, accuracy;  // a hash; of the last epoch
  bool operator==(const Outcome&) const = default;
};

Outcome outcome_of(const std::string& output) {
  std::smatch match;
  Outcome outcome;
  if (std::regex_search(output, match, std::regex("parameters: ([0-9a-f]{16}) on every rank")))
    outcome.parameters = match[1];
  const std::regex epoch("epoch [0-9]+: loss ([0-9.]+), test accuracy ([0-9.]+) %");
  for (std::sregex_iterator at(output.begin(), output.end(), epoch), stop; at != stop; ++at)
    outcome.loss = (*at)[1], outcome.accuracy = (*at)[2];
  EXPECT_NE(outcome.parameters, "") << output;
  return outcome;
}

std::ostream& operator<<(std::ostream& out, const Outcome& outcome) {
  return out << outcome.parameters << ", loss " << outcome.loss << ", accuracy " << outcome.accuracy;
}

std::vector<std::string> files_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

class Restart : public ::testing::TestWithParam<Way> {
 protected:
  static void SetUpTestSuite() {
    data_ = std::make_unique<TemporaryFolder>();
    write_data_set(data_->path(), 301, 101, false);
  }
  static void TearDownTestSuite() { data_.reset(); }

  // 3 epochs of 11 steps, the last of each with one image.
  static std::vector<std::string> learn(const std::vector<std::string>& more = {}) {
    std::vector<std::string> options = {
        "--data", data_->path().string(), "--epochs", "3", "--batch-size", "30", "--min-accuracy",
        "0",      "--learning-rate",      "0.02"};
    options.insert(options.end(), more.begin(), more.end());
    return options;
  }
  static std::string run(const Way& way, int ranks, const std::vector<std::string>& options, int status = 0) {
    const Ranks::End end = way.run(PATH_fashion_mnist, ranks, options);
    EXPECT_EQ(end.status, status) << end.output;
    return end.output;
  }
  std::string run(int ranks, const std::vector<std::string>& options, int status = 0) {
    return run(GetParam(), ranks, options, status);
  }

  static inline std::unique_ptr<TemporaryFolder> data_;
};

class RestartOnce : public Restart {};  // what does not depend on the library

// Stopped in the middle of an epoch and of the lines' 4 steps, then at an epoch's end.
TEST_P(Restart, GoesOnBitForBit) {
  for (const int ranks : counts_for(GetParam(), {1, 2, 3})) {
    const TemporaryFolder folder;
    const std::vector<std::string> common = {"--precision", ranks == 2 ? "double" : "float", "--log-every", "4"};
    const auto options = [&](const std::string& steps) {
      std::vector<std::string> all = learn(common);
      all.insert(all.end(), {"--checkpoint", folder.path().string(), "--steps", steps});
      return all;
    };
    const Outcome whole = outcome_of(run(ranks, learn(common)));
    EXPECT_NE(outcome_of(run(ranks, options("17"))).parameters, whole.parameters);
    if (ranks == 3) run(ranks, options("22"));
    const std::string rest = run(ranks, options("0"));
    EXPECT_SAYS(rest, "resumes from " + folder.path().string() + "/step-00000000" + (ranks == 3 ? "22" : "17") +
                          ".checkpoint, after step ");
    EXPECT_EQ(occurrences(rest, "epoch 2:"), ranks == 3 ? 0u : 1u) << rest;
    EXPECT_EQ(outcome_of(rest), whole) << ranks << " ranks";
    if (ranks != 3) continue;
    // Nothing is left to do: the same answer.
    const std::string again = run(ranks, options("0"));
    EXPECT_EQ(occurrences(again, "epoch 3:"), 0u) << again;
    EXPECT_EQ(outcome_of(again).parameters, whole.parameters);
    EXPECT_SAYS(again, "RIGHT: test accuracy " + whole.accuracy + " %");
    EXPECT_EQ(files_in(folder.path()),
              (std::vector<std::string>{"step-0000000022.checkpoint", "step-0000000033.checkpoint"}));
  }
}

// The lines too are those of a run without a break, also where it was killed between two of them.
TEST_P(RestartOnce, TheLossOfABrokenEpochIsThatOfTheWholeOne) {
  const TemporaryFolder folder;
  const std::vector<std::string> options =
      learn({"--log-every", "4", "--checkpoint", folder.path().string(), "--checkpoint-every", "17", "--steps", "22"});
  const std::string whole = run(2, options);
  fs::remove(folder / "step-0000000022.checkpoint");
  const std::string rest = run(2, options);
  std::smatch match;
  for (const std::string line :
       {"epoch 2 step 8 of 11: loss [0-9.]+\n", "epoch 2: loss [0-9.]+, test accuracy [0-9.]+ %"}) {
    ASSERT_TRUE(std::regex_search(whole, match, std::regex(line))) << whole;
    EXPECT_SAYS(rest, match[0].str());
  }
}

// In double precision: rounding alone is left, and 1e-6 of the parameters' size is far above it.
TEST_P(RestartOnce, GoesOnOnAnotherNumberOfRanks) {
  const TemporaryFolder folder;
  const auto options = [&](const std::vector<std::string>& more = {}) {
    auto all = learn({"--precision", "double"});
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const Outcome whole = outcome_of(run(1, options()));
  run(3, options({"--checkpoint", folder.path().string(), "--steps", "17"}));
  const Outcome mixed = outcome_of(run(2, options({"--checkpoint", folder.path().string()})));
  EXPECT_EQ(mixed.loss, whole.loss);
  EXPECT_EQ(mixed.accuracy, whole.accuracy);
  EXPECT_NE(mixed.loss, "");
}

// Each rank has a folder of its own under the same name, as on nodes without a shared file system.
TEST_P(RestartOnce, NeedsNoSharedFolder) {
  const TemporaryFolder folder;
  const Outcome whole = outcome_of(run(2, learn()));
  const std::string script =
      "cd " + folder.path().string() +
      " && rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}} && mkdir -p $rank && cd $rank && exec \"$@\"";
  const auto in_own_folder = [&](const std::vector<std::string>& more) {
    auto options = learn(more);
    options.insert(options.begin(), {"-c", script, "sh", PATH_fashion_mnist});
    const Ranks::End end = GetParam().run("sh", 2, options);
    EXPECT_EQ(end.status, 0) << end.output;
    return end.output;
  };
  in_own_folder({"--checkpoint", "here", "--steps", "17"});
  EXPECT_EQ(files_in(folder / "1"), std::vector<std::string>{}) << "rank 1 wrote";
  const std::string rest = in_own_folder({"--checkpoint", "here"});
  EXPECT_SAYS(rest, "resumes from here/step-0000000017.checkpoint, after step 17 of 33\n");
  EXPECT_EQ(outcome_of(rest), whole);
}

TEST_P(RestartOnce, OtherOptionsAreRefused) {
  const TemporaryFolder folder;
  const std::string newest = folder / "step-0000000002.checkpoint";
  run(1, learn({"--checkpoint", folder.path().string(), "--steps", "2"}));
  auto options = learn({"--checkpoint", folder.path().string(), "--dropout", "0"});
  EXPECT_SAYS(run(1, options, 2),
              newest + ": a training with --dropout 0.25, not 0.0; resume with the same, or name another folder");
}

// The newest is cut off: the one before is used, with a warning. If that is damaged as well, the run ends.
TEST_P(RestartOnce, ADamagedCheckpointFallsBackToTheOneBefore) {
  const TemporaryFolder folder;
  const auto with_checkpoints = [&](const std::string& steps) {
    return learn({"--checkpoint", folder.path().string(), "--checkpoint-every", "17", "--steps", steps});
  };
  const Outcome whole = outcome_of(run(3, learn()));
  run(3, with_checkpoints("22"));
  const fs::path newest = folder / "step-0000000022.checkpoint", before = folder / "step-0000000017.checkpoint";
  fs::resize_file(newest, fs::file_size(newest) / 2);
  const std::string output = run(3, with_checkpoints("0"));
  EXPECT_EQ(occurrences(output, "fashion_mnist: warning: " + newest.string() + ": a checkpoint cut off: "), 1u)
      << output;
  EXPECT_SAYS(output, "; it is renamed to step-0000000022.checkpoint.damaged, and the checkpoint before it is used\n");
  EXPECT_SAYS(output, "resumes from " + before.string() + ", after step 17 of 33\n");
  EXPECT_EQ(outcome_of(output), whole);

  for (const auto& name : files_in(folder.path()))
    if (name.ends_with(".checkpoint")) fs::resize_file(folder / name, 1000);
  EXPECT_EQ(occurrences(run(3, with_checkpoints("0"), 1), ".checkpoint: a checkpoint cut off"), 2u);
}

// A disk with room for one checkpoint (5.4 MB): the second one fails, the first stays, and training resumes from it.
TEST_P(RestartOnce, AFullDiskEndsTheRunAndLeavesTheCheckpointBefore) {
  const TemporaryFolder folder;
  const SmallDisk disk(folder.path(), 0, "size=8m");
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount a small disk";
  const auto options = learn({"--checkpoint", folder.path().string(), "--checkpoint-every", "5"});
  const std::string output = run(3, options, 1);
  EXPECT_EQ(occurrences(output, "cannot write the checkpoint " + folder.path().string() +
                                    "/step-0000000010.checkpoint: No space left on device\n"),
            1u)
      << output;
  EXPECT_EQ(files_in(folder.path()), std::vector<std::string>{"step-0000000005.checkpoint"});
  ASSERT_EQ(mount("none", folder.path().c_str(), "tmpfs", MS_REMOUNT, "size=64m"), 0);
  const std::string rest = run(3, options);
  EXPECT_SAYS(rest, "after step 5 of 33\n");
  EXPECT_EQ(outcome_of(rest), outcome_of(run(3, learn())));
  ASSERT_EQ(mount("none", folder.path().c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=64m"), 0);
  EXPECT_EQ(occurrences(run(3, options, 2),
                        "no checkpoints can be written to " + folder.path().string() + ": Read-only file system\n"),
            1u);
}

// A disk that takes nothing: a pipe without a reader, where the temporary file would be. The training does not wait for
// it until the next checkpoint is due, and then not longer than the deadline.
TEST_P(RestartOnce, ADiskThatHangsStopsNobodyUntilTheDeadline) {
  const TemporaryFolder folder;
  std::vector<std::string> command = learn(
      {"--checkpoint", folder.path().string(), "--checkpoint-every", "100", "--log-every", "1", "--timeout", "10"});
  command[3] = "1000";  // epochs
  command.insert(command.begin(), PATH_fashion_mnist);
  Ranks ranks(GetParam().starter, 2, command);
  ASSERT_TRUE(ranks.wait_for("epoch 1 step (3) of"));
  ASSERT_EQ(mkfifo((folder / "step-0000000200.checkpoint.tmp").c_str(), 0600), 0);
  ASSERT_TRUE(ranks.wait_for("epoch 28 step (1) of")) << "step 298 was not reached: the others waited";
  const Ranks::End end = ranks.wait();
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_TRUE(std::regex_search(
      end.output, std::regex("rank 0 \\([^)]*\\)( waits|[^\\n]* is late: it is) in writing a checkpoint\n")))
      << end.output.substr(end.output.size() - std::min<std::size_t>(end.output.size(), 1000));
  EXPECT_EQ(occurrences(end.output, "epoch 28 step 4 of"), 0u) << "step 301 came before the checkpoint of step 200";
}

// mnrun's tests are below.
std::string name_of_way(const ::testing::TestParamInfo<Way>& info) { return info.param.name(); }
INSTANTIATE_TEST_SUITE_P(By, Restart, ::testing::ValuesIn(one_way_a_library()), name_of_way);
INSTANTIATE_TEST_SUITE_P(By, RestartOnce, ::testing::Values(quickest_way()), name_of_way);

#if defined(PATH_mnrun) && defined(MULTINODE_HAVE_GLOO)
// A group that mnrun starts again.
class Mnrun : public Restart {
 protected:
  static std::vector<std::string> command(int ranks, const std::vector<std::string>& options, int restarts = 3) {
    std::vector<std::string> argv{
        PATH_mnrun,         "--standalone",        "--max-restarts",  std::to_string(restarts),
        "--nproc-per-node", std::to_string(ranks), PATH_fashion_mnist};
    argv.insert(argv.end(), options.begin(), options.end());
    return argv;
  }
};

// A random rank is killed at a random step, again and again: each time all are started again, and in the end the
// parameters are those of a run that nobody disturbed.
TEST_P(Mnrun, KilledRanksAreStartedAgainAndTheResultIsTheSame) {
  const char* times = std::getenv("MULTINODE_KILLS");  // a campaign sets 20
  const int kills = times ? std::atoi(times) : 1;
  std::mt19937 random(20261121);
  auto options = learn();
  options[3] = "7";  // epochs
  const Outcome whole = outcome_of(run(GetParam(), 3, options));
  for (int kill = 1; kill <= kills; ++kill) {
    const TemporaryFolder folder;
    auto with_checkpoints = options;
    with_checkpoints.insert(with_checkpoints.end(),
                            {"--checkpoint", folder.path().string(), "--checkpoint-every", "5", "--log-every", "1"});
    Process process(command(3, with_checkpoints));
    const int rank = std::uniform_int_distribution(0, 2)(random);
    const int step = std::uniform_int_distribution(1, 60)(random);
    const std::string line =
        "epoch " + std::to_string((step - 1) / 11 + 1) + " step " + std::to_string((step - 1) % 11 + 1) + " of 11";
    ASSERT_TRUE(process.wait_for(line)) << process.wait(1s).all();
    const pid_t pid = process.find("RANK", std::to_string(rank));
    ASSERT_NE(pid, 0);
    const auto killed = std::chrono::steady_clock::now();
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    ASSERT_TRUE(process.wait_for("start 1 of 3 more")) << "the others did not end: " << process.wait(1s).all();
    const std::chrono::duration<double> ended = std::chrono::steady_clock::now() - killed;
    const Result result = process.wait();
    EXPECT_EQ(result.status, 0) << result.all();
    EXPECT_SAYS(result.all(), "rank " + std::to_string(rank) + " (");
    std::smatch from;
    const std::string output = result.all();
    const bool resumed = std::regex_search(output, from, std::regex("after step ([0-9]+) of 77"));
    const Outcome outcome = outcome_of(output);
    EXPECT_EQ(outcome, whole) << output;
    std::cout << "kill " << kill << ": rank " << rank << " after step " << step << ": all ended in "
              << std::round(ended.count() * 100) / 100 << " s, "
              << (resumed ? "resumed after step " + from[1].str() : "began anew") << ", parameters "
              << outcome.parameters << (outcome == whole ? ", as without" : ", WRONG") << "\n";
  }
}

// A job's time is nearly over: a signal to any of the ranks, and all of them save soon, and continue.
TEST_P(Mnrun, ASignalToOneRankSaves) {
  auto options = learn();
  options[3] = "7";  // epochs
  const Outcome whole = outcome_of(run(GetParam(), 3, options));
  const TemporaryFolder folder;
  options.insert(options.end(),
                 {"--checkpoint", folder.path().string(), "--checkpoint-every", "1000", "--log-every", "1"});
  Process process(command(3, options));
  ASSERT_TRUE(process.wait_for("epoch 1 step 3 of")) << process.wait(1s).all();
  const pid_t pid = process.find("RANK", "2");
  ASSERT_NE(pid, 0);
  ASSERT_EQ(::kill(pid, SIGUSR1), 0);
  const Result result = process.wait();
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_EQ(outcome_of(result.all()), whole);
  const auto files = files_in(folder.path());
  ASSERT_EQ(files.size(), 2u) << "not one checkpoint beside that of the end";
  EXPECT_TRUE(std::regex_match(files[0], std::regex("step-00000000[1-7]0.checkpoint"))) << files[0];
}

// Killed while a checkpoint is half written: a pipe where the temporary file would be lets the test decide how far it
// is.
TEST_P(Mnrun, AKillInTheMiddleOfACheckpointGoesOnFromTheOneBefore) {
  auto options = learn();
  options[3] = "20";  // epochs
  const Outcome whole = outcome_of(run(GetParam(), 2, options));
  const TemporaryFolder folder;
  const fs::path pipe = folder / "step-0000000200.checkpoint.tmp";
  options.insert(options.end(),
                 {"--checkpoint", folder.path().string(), "--checkpoint-every", "100", "--log-every", "1"});
  Process process(command(2, options));
  ASSERT_TRUE(process.wait_for("epoch 1 step 1 of"));
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int fd = open(pipe.c_str(), O_RDONLY);  // waits for the writer
  ASSERT_GE(fd, 0);
  std::vector<char> half(2'000'000);
  for (std::size_t got = 0; got < half.size();) {
    const ssize_t n = read(fd, half.data() + got, half.size() - got);
    ASSERT_GT(n, 0);
    got += static_cast<std::size_t>(n);
  }
  ASSERT_EQ(::kill(process.find("RANK", "0"), SIGKILL), 0);
  const Result result = process.wait();
  close(fd);
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.all(), "/step-0000000100.checkpoint, after step 100 of 220\n");
  EXPECT_EQ(outcome_of(result.all()), whole);
  EXPECT_EQ(files_in(folder.path()),
            (std::vector<std::string>{"step-0000000200.checkpoint", "step-0000000220.checkpoint"}));
}

INSTANTIATE_TEST_SUITE_P(By, Mnrun, ::testing::Values(Way{Starter::mnrun}), name_of_way);
#endif

}  // namespace restart_test
