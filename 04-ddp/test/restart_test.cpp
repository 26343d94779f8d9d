// Training that is stopped or killed, and resumes: the programs as a user runs them, on small
// data sets.
#include "fashion_mnist_ways.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/text.hpp>

#include <sys/stat.h>

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <thread>

namespace restart_test {

namespace fs = std::filesystem;
using multinode::names_in;

// The results that the program prints, without times: "parameters", a hash; "loss" and "accuracy" of the last epoch.
using Outcome = std::map<std::string, std::string>;

Outcome outcome_of(const std::string& output) {
  Outcome outcome{{"parameters", parameters_in(output)}};
  for (const Match& epoch : matches_in(output, "epoch [0-9]+: loss ([0-9.]+), test accuracy ([0-9.]+) %"))
    outcome["loss"] = epoch[1], outcome["accuracy"] = epoch[2];
  return outcome;
}

class Restart : public ::testing::TestWithParam<Way> {
 protected:
  // 3 epochs of 11 steps, unless `settings` say otherwise.
  static std::vector<std::string> command(Settings settings) {
    settings.insert({"--min-accuracy", "0"});
    return ::command(PATH_fashion_mnist, learn(settings));
  }
  std::string run(int ranks, const Settings& settings, int status = 0) {
    const Ranks::End end = Ranks(GetParam().starter, ranks, command(settings)).wait();
    EXPECT_EQ(end.status, status) << end.output;
    return end.output;
  }

  const TemporaryFolder folder_;
  const std::string checkpoints_ = folder_.path();
};

// Stopped in the middle of an epoch and between two lines of --log-every 4, then at the end of an epoch.
TEST_P(Restart, GoesOnBitForBit) {
  for (const int ranks : {1, 3}) {
    const std::string folder = folder_ / std::to_string(ranks);
    const Settings common{{"--precision", ranks == 1 ? "double" : "float"},
                          {"--optimizer", ranks == 1 ? "adam" : "sgd"},
                          {"--log-every", "4"}};
    const auto run_to = [&](const std::string& steps) {
      Settings settings = common;
      settings.insert({{"--checkpoint", folder}, {"--steps", steps}});
      return run(ranks, settings);
    };
    const Outcome whole = outcome_of(run(ranks, common));
    EXPECT_NE(outcome_of(run_to("17")).at("parameters"), whole.at("parameters"));
    if (ranks == 3) run_to("22");
    const std::string rest = run_to("0");
    EXPECT_SAYS(rest,
                "resumes from " + folder + "/step-00000000" + (ranks == 3 ? "22" : "17") + ".checkpoint, after step ");
    EXPECT_EQ(occurrences(rest, "epoch 2:"), ranks == 3 ? 0u : 1u) << rest;
    EXPECT_EQ(outcome_of(rest), whole) << ranks << " ranks";
  }
}

TEST_P(Restart, GoesOnInAFolderWhoseNameIsNoUtf8) {
  const std::string folder = folder_ / "essai-\xe9";
  run(2, {{"--checkpoint", folder}, {"--steps", "2"}});
  EXPECT_SAYS(run(2, {{"--checkpoint", folder}, {"--steps", "4"}}),
              "/essai-?/step-0000000002.checkpoint, after step 2 of");
}

// In double precision the results differ only by rounding, which the printed digits do not show.
TEST_P(Restart, GoesOnOnAnotherNumberOfRanks) {
  Outcome whole = outcome_of(run(1, {{"--precision", "double"}}));
  run(3, {{"--precision", "double"}, {"--checkpoint", checkpoints_}, {"--steps", "17"}});
  Outcome mixed = outcome_of(run(2, {{"--precision", "double"}, {"--checkpoint", checkpoints_}}));
  mixed["parameters"] = whole["parameters"];
  EXPECT_EQ(mixed, whole);
}

// Each rank has its own folder under the same name, as on nodes without a shared file system.
TEST_P(Restart, NeedsNoSharedFolder) {
  const Outcome whole = outcome_of(run(2, {}));
  const std::string script =
      "cd " + checkpoints_ +
      " && rank=${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}} && mkdir -p $rank && cd $rank && exec \"$@\"";
  const auto in_own_folder = [&](const Settings& settings, int status = 0) {
    std::vector<std::string> words = command(settings);
    words.insert(words.begin(), {"-c", script, "sh"});
    const Ranks::End end = GetParam().run("sh", 2, words);
    EXPECT_EQ(end.status, status) << end.output;
    return end.output;
  };
  EXPECT_SAYS(in_own_folder({{"--checkpoint", "here"}, {"--steps", "17"}}),
              "starts at step 0 of 33: no checkpoint in here of " + multinode::host_name() + "\n");
  EXPECT_EQ(names_in(folder_ / "1"), std::vector<std::string>{}) << "rank 1 wrote";
  const std::string rest = in_own_folder({{"--checkpoint", "here"}});
  EXPECT_SAYS(rest, "resumes from here/step-0000000017.checkpoint, after step 17 of 33\n");
  EXPECT_EQ(outcome_of(rest), whole);
  std::filesystem::rename(folder_ / "0",
                          folder_ / "2");  // rank 0 has moved to another node, and then rank 1 to its own
  std::filesystem::remove(folder_ / "1");
  std::filesystem::rename(folder_ / "2", folder_ / "1");
  EXPECT_SAYS(in_own_folder({{"--checkpoint", "here"}}, 2),
              ") has the newer checkpoint here/step-0000000033.checkpoint, ");
}

// The same images in other files are the same data set, and images with another label are not.
TEST_P(Restart, OtherOptionsAndOtherDataAreRefused) {
  const TemporaryFolder data;
  write_data_set(data.path(), 301, 101, false);
  const auto expect_refused = [&](const std::string& option, const std::string& value, const std::string& why) {
    const std::string output = run(1, {{"--checkpoint", checkpoints_}, {option, value}}, 2);
    EXPECT_SAYS(output, checkpoints_ + "/step-0000000002.checkpoint: a training with " + why);
    EXPECT_SAYS(output, "; resume with the same, or write checkpoints to another folder\n");
  };
  run(1, {{"--checkpoint", checkpoints_}, {"--steps", "2"}});
  expect_refused("--dropout", "0", "--dropout 0.25, not 0.0");
  EXPECT_SAYS(run(1, {{"--checkpoint", checkpoints_}, {"--data", data.path()}, {"--steps", "2"}}), "after step 2 of");
  write_file(data / "train-labels-idx1-ubyte", idx_bytes({301}, std::vector<std::uint8_t>(301, 1)));
  expect_refused("--data", data.path(), "the data set of CRC-32 \"");
}

// The newest is a pipe, and the one before it cut off: the one before them is used, with warnings. If none is whole,
// the run ends, as another start would not help.
TEST_P(Restart, ADamagedCheckpointFallsBackToTheOneBefore) {
  const auto run_to = [&](const std::string& steps, int status = 0) {
    return run(3, {{"--checkpoint", checkpoints_}, {"--checkpoint-every", "17"}, {"--steps", steps}}, status);
  };
  const std::string whole = run(3, {});
  run_to("22");
  const fs::path pipe = folder_ / "step-0000000030.checkpoint", cut = folder_ / "step-0000000022.checkpoint";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  fs::resize_file(cut, fs::file_size(cut) / 2);
  const std::string output = run_to("0");
  EXPECT_SAYS(output, "warning: cannot read " + pipe.string() + ": it is not a regular file; it is renamed");
  EXPECT_EQ(occurrences(output, "fashion_mnist: warning: " + cut.string() + ": a checkpoint cut off: "), 1u) << output;
  EXPECT_SAYS(output, "; it is renamed to step-0000000022.checkpoint.damaged, and the checkpoint before it is used\n");
  EXPECT_SAYS(output, "resumes from " + checkpoints_ + "/step-0000000017.checkpoint, after step 17 of 33\n");
  EXPECT_EQ(outcome_of(output), outcome_of(whole));
  const std::vector<std::string> names = names_in(checkpoints_);
  for (const auto& name : names)
    if (name.ends_with(".checkpoint")) fs::resize_file(folder_ / name, 1000);
  const std::string none = run_to("0", 2);
  EXPECT_EQ(occurrences(none, ".checkpoint: a checkpoint cut off"), 2u) << none;
  EXPECT_EQ(occurrences(none, "fashion_mnist: "), 1u) << "one line: " << none;
  EXPECT_SAYS(none, "; remove these to start anew, or name another folder\n");
  EXPECT_EQ(names_in(checkpoints_), names);
}

// The training waits for a disk that hangs only when the next checkpoint is due, and then no longer than the deadline.
TEST_P(Restart, ADiskThatHangsStopsNobodyUntilTheDeadline) {
  std::vector<std::string> words = command({{"--checkpoint", checkpoints_},
                                            {"--checkpoint-every", "100"},
                                            {"--epochs", "1000"},
                                            {"--log-every", "1"},
                                            {"--timeout", "10"}});
  words.insert(words.begin(), {"env", std::string("LD_PRELOAD=") + PATH_hanging_disk});
  Ranks ranks(GetParam().starter, 2, words);
  ASSERT_TRUE(ranks.wait_for("epoch 28 step (1) of")) << "step 298 was not reached: the others waited";
  const Ranks::End end = ranks.wait();
  EXPECT_EQ(end.status, 1) << end.output;
  EXPECT_MATCH(end.output, "rank 0 \\([^)]*\\)( waits|[^\\n]* is late: it is) in writing a checkpoint\n");
  EXPECT_EQ(occurrences(end.output, "epoch 28 step 4 of"), 0u) << "step 301 came before the checkpoint of step 200";
}

// mnrun's tests are below.
INSTANTIATE_TEST_SUITE_P(By, Restart, ::testing::Values(quickest_way()), name_of_way);

#if defined(PATH_mnrun) && defined(MULTINODE_HAVE_GLOO)
// A group that mnrun starts again.
class Mnrun : public Restart {
 protected:
  std::vector<std::string> group(int ranks, Settings settings, const std::string& checkpoint_every) {
    settings.insert({{"--checkpoint", checkpoints_}, {"--checkpoint-every", checkpoint_every}, {"--log-every", "1"}});
    std::vector<std::string> words = command(settings);
    words.insert(words.begin(),
                 {PATH_mnrun, "--standalone", "--max-restarts", "3", "--nproc-per-node", std::to_string(ranks)});
    return words;
  }
};

// A scheduler warns before a job's time limit. After a signal to any rank, all ranks save a checkpoint and continue.
TEST_P(Mnrun, ASignalToOneRankSaves) {
  const Settings settings{{"--epochs", "7"}};
  const Outcome whole = outcome_of(run(3, settings));
  Process process(group(3, settings, "1000"));
  ASSERT_TRUE(process.wait_for("epoch 1 step 3 of")) << process.wait(1s).all();
  const pid_t pid = process.find("RANK", "2");
  ASSERT_NE(pid, 0);
  ASSERT_EQ(::kill(pid, SIGUSR1), 0);
  const Result result = process.wait();
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_EQ(outcome_of(result.all()), whole);
  const auto files = names_in(checkpoints_);
  ASSERT_EQ(files.size(), 3u) << "not one checkpoint and the lock beside that of the end";
  EXPECT_TRUE(is_like(files[1], "step-00000000[1-7]0.checkpoint")) << files[1];
}

// Killed while a checkpoint is half written. mnrun starts all ranks again, and at the end the parameters are those of
// an undisturbed run.
TEST_P(Mnrun, AKillInTheMiddleOfACheckpointGoesOnFromTheOneBefore) {
  const Settings settings{{"--epochs", "20"}};
  const Outcome whole = outcome_of(run(2, settings));
  const fs::path half = folder_ / "step-0000000200.checkpoint.tmp";
  std::vector<std::string> words = group(2, settings, "100");
  words.insert(words.begin(), {"env", std::string("LD_PRELOAD=") + PATH_hanging_disk});
  Process process(words);
  std::error_code absent;  // until the checkpoint of step 200 begins
  const auto end = std::chrono::steady_clock::now() + 300s;
  while (fs::status(half, absent).permissions() != fs::perms::owner_read) {
    ASSERT_LT(std::chrono::steady_clock::now(), end) << process.wait(1s).all();
    std::this_thread::sleep_for(10ms);
  }
  ASSERT_EQ(::kill(process.find("RANK", "0"), SIGKILL), 0);
  const Result result = process.wait();
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_SAYS(result.all(), "/step-0000000100.checkpoint, after step 100 of 220\n");
  EXPECT_EQ(outcome_of(result.all()), whole);
  EXPECT_EQ(names_in(checkpoints_),
            (std::vector<std::string>{"lock", "step-0000000200.checkpoint", "step-0000000220.checkpoint"}));
}

// Four ranks on one node, on two, and from one to two: Gloo adds in the same order.
TEST_P(Mnrun, TheNodesDoNotShowInTheResult) {
  const auto on = [&](int nodes, const Settings& settings) {
    const FreePort port;
    const std::string agent = std::string(PATH_mnrun) + " --nnodes " + std::to_string(nodes) + " --nproc-per-node " +
                              std::to_string(4 / nodes) + " --master-addr 127.0.0.1 --master-port " +
                              std::to_string(port.number()) + " --node-rank ";
    const std::string program = " " + multinode::join(command(settings), " ");
    const Result result = ::run(
        {"bash", "-ec",
         nodes == 1 ? agent + "0" + program : agent + "1" + program + " & " + agent + "0" + program + "; wait $!"});
    EXPECT_EQ(result.status, 0) << result.all();
    return result.out;
  };
  const Outcome whole = outcome_of(on(1, {}));
  EXPECT_EQ(outcome_of(on(2, {})), whole);
  on(1, {{"--checkpoint", checkpoints_}, {"--steps", "17"}});
  const std::string resumed = on(2, {{"--checkpoint", checkpoints_}});
  EXPECT_SAYS(resumed, "after step 17 of 33\n");
  EXPECT_EQ(outcome_of(resumed), whole);
}

INSTANTIATE_TEST_SUITE_P(By, Mnrun, ::testing::Values(Way{Starter::mnrun}), name_of_way);
#endif

}  // namespace restart_test
