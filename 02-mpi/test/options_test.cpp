// The command line: every option, every refusal.
#include "benchmark/options.hpp"

#include <multinode/base/program_options.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <stdlib.h>

#include <string>
#include <vector>

namespace options_test {

using namespace perf;
using multinode::DataType;

const Collective sum = {.name = "all_reduce",
                        .reduces = true,
                        .result = [](const RankAndRoot&, int) { return Source(Source::all, 0); },
                        .bus_factor = [](int) { return 1.0; }};

void parse(Options& options, const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"all_reduce_perf"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  boost::program_options::options_description known = options.description(sum);
  known.add(options.common.description());
  if (multinode::parse_command_line(static_cast<int>(argv.size()), argv.data(), known, false)) options.validate();
}

// Looks at the options of a command line with look(options).
template <class Look>
void given(const std::vector<std::string>& words, Look&& look) {
  SCOPED_TRACE(testing::PrintToString(words));
  Options options;
  ASSERT_NO_THROW(parse(options, words));
  look(options);
}

void expect_refused(const std::vector<std::string>& words, const std::string& text) {
  Options options;
  EXPECT_EQ(multinode::testing::error_text<multinode::UsageError>([&] { parse(options, words); }), text)
      << testing::PrintToString(words);
}

TEST(Options, HaveTheDefaultsOfNcclTests) {
  given({}, [](const Options& o) {
    EXPECT_EQ(o.sizes(), std::vector<std::size_t>{33'554'432});
    EXPECT_EQ(o.iterations, 20);
    EXPECT_EQ(o.warmup, 1);
    EXPECT_EQ(o.check, 1);
    EXPECT_EQ(o.cycles, 1);
    EXPECT_EQ(o.types, std::vector{DataType::float32});
    EXPECT_EQ(o.redops, std::vector{Redop::sum});
    EXPECT_FALSE(o.all_redops);
    EXPECT_EQ(o.root, 0);
    EXPECT_EQ(o.average, Average::mean);
    EXPECT_FALSE(o.timestamps || o.per_iteration || o.sweep);
    EXPECT_FALSE(o.corrupt);
    EXPECT_TRUE(o.least_busbw.empty() && o.common.json.empty() && o.csv.empty());
    EXPECT_EQ(o.common.timeout, std::chrono::seconds(60));
    EXPECT_EQ(o.usage.threads, 1);
    EXPECT_EQ(o.usage.ranks_per_thread, 1);
    EXPECT_EQ(o.usage.graph_launches, 0);
  });
}

TEST(Options, TheEnvironmentSplitsTheProcesses) {
  const auto with = [](const char* variable, const char* value, auto&& look) {
    setenv(variable, value, 1);
    look();
    unsetenv(variable);
  };
  const auto expect_colors = [&](const char* variable, const char* value, const std::vector<int>& colors) {
    SCOPED_TRACE(value);
    with(variable, value, [&] {
      given({}, [&](const Options& o) {
        std::vector<int> found;
        for (int process = 0; process < 6; ++process) found.push_back(o.usage.color(process));
        EXPECT_EQ(found, colors);
      });
    });
  };
  given({}, [](const Options& o) { EXPECT_EQ(o.usage.color(3), 0); });
  for (const char* text : {"MOD 2", "%2", "mod 0x2", "AND 1", "&0b1"})
    expect_colors("NCCL_TESTS_SPLIT", text, {0, 1, 0, 1, 0, 1});
  for (const char* text : {"DIV 3", "/3"}) expect_colors("NCCL_TESTS_SPLIT", text, {0, 0, 0, 1, 1, 1});
  for (const char* text : {"OR 1", "|0x1"}) expect_colors("NCCL_TESTS_SPLIT", text, {1, 1, 3, 3, 5, 5});
  for (const char* text : {"2", "0x2"}) expect_colors("NCCL_TESTS_SPLIT_MASK", text, {0, 0, 2, 2, 0, 0});
  for (const char* text : {"", "8", "MOD", "MOD 0", "DIV 0", "MOD -1", "XOR 1", "MOD 8x", "AND 0xG", "&99999999999"})
    with("NCCL_TESTS_SPLIT", text, [&] {
      expect_refused({}, "NCCL_TESTS_SPLIT must be AND, OR, MOD or DIV and a number, such as 'MOD 8', not '" +
                             std::string(text) + "'");
    });
}

struct Spelling {
  std::string letter, name, value;
  bool (*taken)(const Options&);
};

TEST(Options, MeanTheSameInEverySpelling) {
  const std::vector<Spelling> all = {
      {"-t", "--nthreads", "3", [](const Options& o) { return o.usage.threads == 3; }},
      {"-g", "--ngpus", "4", [](const Options& o) { return o.usage.ranks_per_thread == 4; }},
      {"-b", "--minbytes", "8", [](const Options& o) { return o.min_bytes == 8; }},
      {"-e", "--maxbytes", "1G", [](const Options& o) { return o.max_bytes == 1 << 30; }},
      {"-i", "--stepbytes", "2M", [](const Options& o) { return o.step_bytes == 2 << 20; }},
      {"-f", "--stepfactor", "1.5", [](const Options& o) { return o.step_factor == 1.5; }},
      {"-n", "--iters", "7", [](const Options& o) { return o.iterations == 7; }},
      {"-w", "--warmup_iters", "0", [](const Options& o) { return o.warmup == 0; }},
      {"-N", "--run_cycles", "0", [](const Options& o) { return o.cycles == 0; }},
      {"-c", "--check", "3", [](const Options& o) { return o.check == 3; }},
      {"-o", "--op", "avg", [](const Options& o) { return o.redops == std::vector{Redop::avg}; }},
      {"-d", "--datatype", "half", [](const Options& o) { return o.types == std::vector{DataType::float16}; }},
      {"-r", "--root", "2", [](const Options& o) { return o.root == 2; }},
      {"-r", "--root", "all", [](const Options& o) { return !o.root; }},
      {"-r", "--root", "-1", [](const Options& o) { return !o.root; }},
      {"-T", "--timeout", "2.5", [](const Options& o) { return o.common.timeout == std::chrono::milliseconds(2500); }},
      {"-G", "--cudagraph", "6", [](const Options& o) { return o.usage.graph_launches == 6; }},
      {"-S", "--report_timestamps", "1", [](const Options& o) { return o.timestamps; }},
      {"-J", "--output_file", "a.json", [](const Options& o) { return o.common.json == "a.json"; }},
      {"-a", "--average", "0", [](const Options& o) { return o.average == Average::rank0; }},
      {"-a", "--average", "2", [](const Options& o) { return o.average == Average::min; }},
      {"-a", "--average", "3", [](const Options& o) { return o.average == Average::max; }},
      {"-I", "--per_iter_timing", "1", [](const Options& o) { return o.per_iteration; }},
      {"", "--corrupt", "1", [](const Options& o) { return o.corrupt == 1; }},
      {"", "--csv", "a.csv", [](const Options& o) { return o.csv == "a.csv"; }},
      {"", "--json", "a.json", [](const Options& o) { return o.common.json == "a.json"; }},
      {"", "--backend", "gloo", [](const Options& o) { return o.common.backend == "gloo"; }},
  };
  for (const Spelling& s : all) {
    const auto expect_taken = [&](const Options& o) { EXPECT_TRUE(s.taken(o)); };
    if (!s.letter.empty()) {
      given({s.letter, s.value}, expect_taken);
      given({s.letter + s.value}, expect_taken);
    }
    given({s.name, s.value}, expect_taken);
    given({s.name + "=" + s.value}, expect_taken);
  }
}

TEST(Options, LeastBusBandwidths) {
  given({"--min-busbw", "10"}, [](const Options& o) {
    ASSERT_EQ(o.least_busbw.size(), 1u);
    EXPECT_EQ(o.least_busbw[0].bytes_per_second, 10e9);
    EXPECT_EQ(o.least_busbw[0].from_size, 0u);
  });
  given({"-b", "1M", "-e", "64M", "--min-busbw", "0.5:1M,10:64M"}, [](const Options& o) {
    ASSERT_EQ(o.least_busbw.size(), 2u);
    EXPECT_EQ(o.least_busbw[0].bytes_per_second, 0.5e9);
    EXPECT_EQ(o.least_busbw[0].from_size, 1u << 20);
    EXPECT_EQ(o.least_busbw[1].bytes_per_second, 10e9);
    EXPECT_EQ(o.least_busbw[1].from_size, 64u << 20);
  });
  const std::string form = "--min-busbw must be GB/s:SIZE, or a comma-separated list such as 1:1M,10:64M, not '";
  for (const char* text : {"", "x", "10:1M,", "-1", "0", "inf", "nan", ":1M", ",", "10 GB", "1e400"})
    expect_refused({"--min-busbw", text}, form + text + "'");
  expect_refused({"--min-busbw", "10:"}, "--min-busbw must be a size such as 512, 64K, 64M or 4G, not ''");
  expect_refused({"--min-busbw", "1:2M,2:1M"}, "--min-busbw: the sizes in '1:2M,2:1M' must ascend");
  expect_refused({"--min-busbw", "10:64M"},
                 "--min-busbw: no size from 67108864 on is measured, the largest is 33554432; see -e (--maxbytes)");
}

TEST(Sizes, GoByStepsAndByFactors) {
  const std::size_t mega = 1 << 20;
  const std::pair<std::vector<std::string>, std::vector<std::size_t>> cases[] = {
      {{"-b", "8", "-e", "24", "-i", "8"}, {8, 16, 24}},
      {{"-b", "8", "-e", "23", "-i", "8"}, {8, 16}},
      {{"-b", "8", "-e", "70", "-f", "3"}, {8, 24}},
      {{"-b", "1", "-e", "8", "-f", "1.5"}, {1, 2, 3, 4, 6}},  // 1 x 1.5 is not a byte more
      {{"-b", "1K", "-e", "1K", "-f", "2"}, {1024}},
      {{"-b", "1048576G", "-e", "1048576G", "-f", "1000000"}, {std::size_t{1} << 50}},
      {{"-b", "1", "-e", "1048576G", "-i", "1048576G"}, {1}},
      {{"-b", "1M", "-e", "3M"}, {mega, 2 * mega, 3 * mega}},  // nccl-tests' default step
      // The tutorials' command line; its other options are tested above.
      {{"-b", "64M", "-e", "4G", "-f", "2", "-c", "0", "-n", "100", "-g", "8"},
       {64 * mega, 128 * mega, 256 * mega, 512 * mega, 1024 * mega, 2048 * mega, 4096 * mega}},
      {{"--sweep", "-e", "64"}, {8, 16, 32, 64}},
      {{"--sweep", "-b", "16M", "-f", "4"}, {16 * mega, 64 * mega}},
      {{"--sweep", "-e", "10", "-i", "1"}, {8, 9, 10}},
  };
  for (const auto& [words, sizes] : cases) given(words, [&](const Options& o) { EXPECT_EQ(o.sizes(), sizes); });
  given({"-b", "1", "-e", "1048576G", "-f", "2"}, [](const Options& o) { EXPECT_EQ(o.sizes().size(), 51u); });
}

TEST(Refusal, NamesTheOptionAndWhatIsAllowed) {
  const auto whole = [](const std::string& name, const std::string& range, const std::string& text) {
    return name + " must be a whole number from " + range + ", not '" + text + "'";
  };
  expect_refused({"-n", "0"}, whole("-n (--iters)", "1 to 1000000000", "0"));
  expect_refused({"--iters=x"}, whole("-n (--iters)", "1 to 1000000000", "x"));
  expect_refused({"-n", "20x"}, whole("-n (--iters)", "1 to 1000000000", "20x"));
  expect_refused({"-n", ""}, whole("-n (--iters)", "1 to 1000000000", ""));
  expect_refused({"-n", "99999999999999999999"}, whole("-n (--iters)", "1 to 1000000000", "99999999999999999999"));
  expect_refused({"-w", "-1"}, whole("-w (--warmup_iters)", "0 to 1000000000", "-1"));
  expect_refused({"-c", "-1"}, whole("-c (--check)", "0 to 1000000000", "-1"));
  expect_refused({"-N", "-1"}, whole("-N (--run_cycles)", "0 to 1000000000", "-1"));
  expect_refused({"-g", "0"}, whole("-g (--ngpus)", "1 to 1024", "0"));
  expect_refused({"-t", "1025"}, whole("-t (--nthreads)", "1 to 1024", "1025"));
  expect_refused({"-G", "-1"}, whole("-G (--cudagraph)", "0 to 1000000", "-1"));
  expect_refused({"--corrupt", "-1"}, whole("--corrupt", "0 to 1000000000", "-1"));

  for (const std::string name : {"-S (--report_timestamps)", "-I (--per_iter_timing)"})
    for (const std::string text : {"2", "yes", ""})
      expect_refused({name.substr(0, 2), text}, name + " must be 0 or 1, not '" + text + "'");

  const std::string size = " must be a size such as 512, 64K, 64M or 4G, not '";
  expect_refused({"-b", "64MB"}, "-b (--minbytes)" + size + "64MB'");
  expect_refused({"-e", "-1"}, "-e (--maxbytes)" + size + "-1'");
  expect_refused({"-i", "1.5M"}, "-i (--stepbytes)" + size + "1.5M'");
  expect_refused({"-b", "0"}, "-b (--minbytes) must be a size from 1 to 1048576G, not '0'");
  expect_refused({"-i", "0"}, "-i (--stepbytes) must be a size from 1 to 1048576G, not '0'");
  expect_refused({"-e", "1048577G"}, "-e (--maxbytes) must be a size from 1 to 1048576G, not '1048577G'");
  for (const std::string text : {"1", "0.5", "0", "-2", "x", "2x", "nan", "inf", "1e9", ""})
    expect_refused({"-f", text}, "-f (--stepfactor) must be a number above 1, at most 1000000, not '" + text + "'");

  expect_refused({"-d", "fp16"},
                 "-d (--datatype) must be one of int8, uint8, int32, uint32, int64, uint64, half, "
                 "float, double, bfloat16 or all, not 'fp16'");
  expect_refused({"-o", "add"}, "-o (--op) must be one of sum, prod, max, min, avg or all, not 'add'");
  expect_refused({"-r", "-2"}, "-r (--root) must be a rank or all, not '-2'");
  expect_refused({"-a", "4"}, "-a (--average) must be 0 (rank 0), 1 (mean), 2 (minimum) or 3 (maximum), not '4'");
  for (const char* text : {"0", "-1", "x", "nan", "1e9"})
    expect_refused({"-T", text}, "-T must be seconds above 0, at most a year: every wait has a deadline here, not '" +
                                     std::string(text) + "'");
  expect_refused({"--output_file", ""}, "-J (--output_file) must be the name of a file");
}

TEST(Refusal, OfWhatDoesNotGoTogether) {
  expect_refused({"-f", "2", "-i", "1M"},
                 "-i (--stepbytes) and -f (--stepfactor) are two ways to the next size: leave out one");
  expect_refused({"-b", "64M"},
                 "-b (--minbytes) is 67108864, above -e (--maxbytes), which is 33554432 by "
                 "default");
  expect_refused({"-b", "2", "-e", "1"}, "-b (--minbytes) is 2, above -e (--maxbytes), which is 1");
  expect_refused({"-b", "1", "-i", "1"},
                 "more than 100000 sizes from -b (--minbytes) to -e (--maxbytes): take larger steps with -f "
                 "(--stepfactor) or -i (--stepbytes)");
  expect_refused({"-J", "a", "--json", "b"}, "-J (--output_file) and --json name different files: leave out one");
  expect_refused({"--csv", "a", "-J", "a"}, "--csv and --json name the same file: give each a file of its own");
  expect_refused({"-I", "1", "-G", "1"},
                 "-I (--per_iter_timing) cannot time single calls in a CUDA graph: leave out -I or -G (--cudagraph)");
  const std::string why =
      "--sweep adapts the numbers of calls to each size: leave out -n (--iters) and -w (--warmup_iters), or --sweep";
  expect_refused({"--sweep", "-n", "20"}, why);
  expect_refused({"--sweep", "-w", "1"}, why);
}

TEST(Refusal, OfWhatIsNoOption) {
  expect_refused({"--iter", "3"}, "unrecognised option '--iter'; see --help");
  // nccl-tests' options that are not here.
  for (const std::string letter : {"-m", "-p", "-z", "-y", "-C", "-R", "-M", "-D", "-u"})
    expect_refused({letter, "1"}, "unrecognised option '" + letter + "'; see --help");
  expect_refused({"8"}, "only options are expected, no other words; see --help");
  expect_refused({"-n"}, "the required argument for option '--iters' is missing; see --help");
  expect_refused({"-b", "-e", "8"}, "the required argument for option '--minbytes' is missing; see --help");
  expect_refused({"-n", "1", "-n", "2"}, "option '--iters' cannot be specified more than once; see --help");
}

}  // namespace options_test
