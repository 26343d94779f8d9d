// random_mlp as a user runs it, with a small network; what it says about its steps' times; and its trace.
#include "fashion_mnist_ways.hpp"

#include <algorithm>
#include <fstream>
#include <map>
#include <regex>

namespace random_mlp_test {

class RandomMlp : public ::testing::Test {
 protected:
  // 5 epochs of 2 steps.
  static inline const std::vector<std::string> small{"--hidden-layers", "5", "--hidden-units", "64",
                                                     "--batch-size",    "16"};
  TemporaryFolder folder_;
};

TEST_F(RandomMlp, LearnsOnAnyNumberOfRanks) {
  for (const int ranks : {1, 2, 3}) {
    const auto [output, lines] = results(quickest_way(), PATH_random_mlp, ranks, small);
    EXPECT_SAYS(output, "RIGHT: the loss fell; parameters: ");
    for (int rank = 0; rank < ranks; ++rank)
      EXPECT_SAYS(output, "[rank " + std::to_string(rank) + "] Epoch 4 | Batchsize: 16 | Steps: 2 | Loss: 0.");
    ASSERT_EQ(lines.size(), 6u);
    EXPECT_EQ(lines[4].at("steps"), 10);
    EXPECT_LT(lines[5].at("after"), lines[5].at("before"));
    EXPECT_EQ(lines[5].at("identical"), true);
  }
}

// Also of compressed gradients in several buckets.
TEST_F(RandomMlp, BreaksAStepDownAndMeasuresItsOverlap) {
  std::vector<std::string> options = small;
  options.insert(options.end(),
                 {"--breakdown", "--measure-overlap", "3", "--compression", "bfloat16", "--bucket-bytes", "20K"});
  const auto [output, lines] = results(quickest_way(), PATH_random_mlp, 3, options);
  ASSERT_EQ(lines.size(), 8u);
  EXPECT_EQ(lines[5].at("steps"), 10);
  for (const char* phase : {"forward", "backward", "exposed communication", "update", "step"}) {
    EXPECT_SAYS(output, std::string(phase) + "  ");
    const nlohmann::json& times = lines[5].at("breakdown").at(phase);
    EXPECT_GT(times.at("lowest_ms"), 0) << phase;
    EXPECT_LE(times.at("lowest_ms"), times.at("mean_ms")) << phase;
    EXPECT_LE(times.at("mean_ms"), times.at("highest_ms")) << phase;
  }
  const nlohmann::json& overlap = lines[6].at("overlap");
  const auto median = [&](const char* mode) { return overlap.at(mode).at("median_s").get<double>(); };
  for (const char* mode : {"overlapped", "serial", "compute only", "communication only"}) EXPECT_GT(median(mode), 0);
  EXPECT_NEAR(overlap.at("hidden"), 1 - (median("overlapped") - median("compute only")) / median("communication only"),
              1e-9);
  EXPECT_NEAR(overlap.at("hidden_serial"),
              1 - (median("serial") - median("compute only")) / median("communication only"), 1e-9);
}

// Of a trace: events of each rank and track, in order; of the communication the reductions.
struct Event {
  std::string name;
  double begin, end;
  nlohmann::json args;
};
using Tracks = std::map<std::pair<int, std::string>, std::vector<Event>>;
Tracks tracks_of(const std::string& file) {
  std::ifstream in(file);
  const nlohmann::json trace = nlohmann::json::parse(in);
  std::map<std::pair<int, int>, std::string> names;
  Tracks tracks;
  for (const nlohmann::json& event : trace.at("traceEvents")) {
    const std::pair<int, int> track(event.at("pid"), event.at("tid"));
    if (event.at("ph") == "M") {
      if (event.at("name") == "thread_name") names[track] = event.at("args").at("name");
      continue;
    }
    EXPECT_EQ(event.at("ph"), "X");
    const std::string name = event.at("name");
    if (names.at(track) == "communication" && name.find("bucket") == name.npos) continue;  // sums of losses
    const double begin = event.at("ts"), duration = event.at("dur");
    EXPECT_GE(begin, 0);
    EXPECT_GE(duration, 0);
    tracks[{track.first, names.at(track)}].push_back(
        {name, begin, begin + duration, event.value("args", nlohmann::json())});
  }
  return tracks;
}

// A network whose backward pass takes long enough for a reduction to begin in it.
TEST_F(RandomMlp, TracesTheLastSteps) {
  const std::string file = folder_ / "trace.json";
  constexpr double rounding = 1e-3;  // us
  for (const bool overlap : {true, false}) {
    std::vector<std::string> options{"--hidden-layers", "5",  "--hidden-units", "256", "--batch-size", "256",
                                     "--trace",         file, "--bucket-bytes", "20K"};
    if (!overlap) options.push_back("--no-overlap");
    const Ranks::End end = quickest_way().run(PATH_random_mlp, 3, options);
    EXPECT_EQ(end.status, 0) << end.output;
    EXPECT_SAYS(end.output, "trace: " + file + ", the clocks of all ranks within ");
    Tracks tracks = tracks_of(file);
    std::size_t early = 0;  // reductions that began before the backward pass had ended
    for (int rank = 0; rank < 3; ++rank) {
      const std::vector<Event>& compute = tracks[{rank, "compute"}];
      const std::vector<Event>& communication = tracks[{rank, "communication"}];
      ASSERT_EQ(compute.size(), 3 * 5u);        // a step and its four phases
      ASSERT_EQ(communication.size(), 3 * 5u);  // 5 buckets
      for (std::size_t s = 0; s < 3; ++s) {
        const Event* const step = &compute[5 * s];
        EXPECT_EQ(step->name, "step " + std::to_string(8 + s));
        double at = step->begin, bytes = 0;
        for (const auto& [i, name] :
             {std::pair{1, "forward"}, {2, "backward"}, {3, "exposed communication"}, {4, "update"}}) {
          EXPECT_EQ(step[i].name, name);
          EXPECT_NEAR(step[i].begin, at, rounding);
          at = step[i].end;
        }
        EXPECT_NEAR(at, step->end, rounding);
        for (std::size_t b = 5 * s; b < 5 * s + 5; ++b) {
          EXPECT_GE(communication[b].begin, step[2].begin - rounding);
          EXPECT_LE(communication[b].end, step[3].end + rounding);
          bytes += communication[b].args.at("bytes").get<double>();
          early += communication[b].begin < step[2].end;
        }
        EXPECT_EQ(bytes, 4 * (20 * 64 + 64 + 64 * 256 + 256 + 3 * (256 * 256 + 256) + 256 + 64));
      }
    }
    EXPECT_EQ(early > 0, overlap);
  }
}

// Rank 1's clock is 5 s ahead. All ranks take part in a reduction at once: on one clock, it ends on none before it
// began on the last.
TEST_F(RandomMlp, TracesAllRanksOnOneClock) {
  const std::vector<std::string> ahead{"unshare", "--time", "--fork", "--kill-child", "--monotonic", "5"};
  std::vector<std::string> attempt = ahead;
  attempt.push_back("true");
  if (multinode::testing::run(attempt).status != 0) GTEST_SKIP() << "this machine makes no time namespaces";
  std::string shell = "[ ${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$RANK}} != 1 ] || set --";
  for (const std::string& word : ahead) shell += " " + word;
  const std::string file = folder_ / "trace.json";
  const Ranks::End end =
      quickest_way().run("sh", 3,
                         {"-c", shell + " \"$@\"; exec \"$@\"", "sh", PATH_random_mlp, "--hidden-layers", "5",
                          "--hidden-units", "64", "--batch-size", "16", "--trace", file},
                         50s);
  EXPECT_EQ(end.status, 0) << end.output;
  Tracks tracks = tracks_of(file);
  const std::vector<Event>& first = tracks[{0, "communication"}];
  EXPECT_GE(first.size(), 3u);
  std::smatch within;  // how closely the clocks could be compared; less on a busy machine
  ASSERT_TRUE(std::regex_search(end.output, within, std::regex("the clocks of all ranks within ([0-9.e+]+) us")));
  const double difference = std::max(1000.0, std::stod(within[1]));  // us
  for (const int rank : {1, 2}) {
    const std::vector<Event>& other = tracks[{rank, "communication"}];
    ASSERT_EQ(other.size(), first.size());
    for (std::size_t i = 0; i < first.size(); ++i) {
      EXPECT_EQ(other[i].name, first[i].name);
      EXPECT_GT(other[i].end, first[i].begin - difference);
      EXPECT_GT(first[i].end, other[i].begin - difference);
    }
  }
}

// log softmax of one number is 0, whatever the number: there is no loss, and no way to a smaller one.
TEST(RandomMlpOnce, CrossEntropyOverOneClassIsExactlyZero) {
  const Result result = run({PATH_random_mlp, "--hidden-units", "64", "--loss", "cross-entropy"});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_SAYS(result.out,
              "loss of the first batch: 0.000000, and 0.000000 after 10 steps; largest gradient of the last: 0\n");
  EXPECT_SAYS(result.out, "WRONG: the loss did not fall");
}

TEST(RandomMlpOnce, SaysThatItCannotWriteTheTrace) {
  const Result full = run({PATH_random_mlp, "--hidden-units", "64", "--epochs", "1", "--trace", "/dev/full"});
  EXPECT_EQ(full.status, 1) << full.all();
  EXPECT_SAYS(full.err, "--trace: cannot write to /dev/full: No space left");
}

}  // namespace random_mlp_test
