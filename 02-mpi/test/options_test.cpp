// The command line: every option, every refusal.
#include "benchmark/options.hpp"

#include <multinode/base/program_options.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace options_test {

using namespace perf;
using multinode::DataType;

void parse(Options& options, const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"all_reduce_perf"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  boost::program_options::options_description known = options.description("all_reduce_perf");
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
    EXPECT_FALSE(o.sweep || o.corrupt || o.least_busbw);
    EXPECT_EQ(o.common.json, "");
    EXPECT_EQ(o.common.timeout, std::chrono::seconds(60));
    EXPECT_EQ(o.ranks_per_process, 1);
  });
}

struct Spelling {
  std::string letter, name, value;
  bool (*taken)(const Options&);
};

TEST(Options, MeanTheSameInEverySpelling) {
  const std::vector<Spelling> all = {
      {"-g", "--ngpus", "4", [](const Options& o) { return o.ranks_per_process == 4; }},
      {"-b", "--minbytes", "8", [](const Options& o) { return o.min_bytes == 8; }},
      {"-e", "--maxbytes", "1G", [](const Options& o) { return o.max_bytes == 1 << 30; }},
      {"-f", "--stepfactor", "1.5", [](const Options& o) { return o.step_factor == 1.5; }},
      {"-n", "--iters", "7", [](const Options& o) { return o.iterations == 7; }},
      {"-w", "--warmup_iters", "0", [](const Options& o) { return o.warmup == 0; }},
      {"-N", "--run_cycles", "0", [](const Options& o) { return o.cycles == 0; }},
      {"-c", "--check", "3", [](const Options& o) { return o.check == 3; }},
      {"-d", "--datatype", "half", [](const Options& o) { return o.types == std::vector{DataType::float16}; }},
      {"-d", "--datatype", "all", [](const Options& o) { return o.types.size() == 10; }},
      {"", "--corrupt", "1", [](const Options& o) { return o.corrupt == 1; }},
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

TEST(Options, LeastBusBandwidth) {
  for (const auto& [text, from] : {std::pair("0.5", 0u), {"0.5:1M", 1u << 20}})
    given({"--min-busbw", text}, [from = from](const Options& o) {
      EXPECT_EQ(o.least_busbw.value().bytes_per_second, 0.5e9);
      EXPECT_EQ(o.least_busbw->from_size, from);
    });
  for (const std::string text : {"", "x", "10,20", "-1", "0", "inf", "nan", ":1M", "10 GB", "1e400"})
    expect_refused({"--min-busbw", text}, "--min-busbw must be GB/s:SIZE, such as 10:1M, not '" + text + "'");
  expect_refused({"--min-busbw", "10:"}, "--min-busbw must be a size such as 512, 64K, 64M or 4G, not ''");
  expect_refused({"--min-busbw", "10:64M"},
                 "--min-busbw: no size from 67108864 on is measured, the largest is 33554432; see -e (--maxbytes)");
}

TEST(Sizes, GoByStepsAndByFactors) {
  const std::size_t mega = 1 << 20;
  const std::pair<std::vector<std::string>, std::vector<std::size_t>> cases[] = {
      {{"-b", "8", "-e", "70", "-f", "3"}, {8, 24}},
      {{"-b", "1", "-e", "8", "-f", "1.5"}, {1, 2, 3, 4, 6}},  // 1 x 1.5 is not a byte more
      {{"-b", "1K", "-e", "1K", "-f", "2"}, {1024}},
      {{"-b", "1048576G", "-e", "1048576G", "-f", "1000000"}, {std::size_t{1} << 50}},
      {{"-b", "1M", "-e", "3M"}, {mega, 2 * mega, 3 * mega}},  // nccl-tests' default step
      {{"-b", "8", "-e", "1M"}, {8}},
      // The tutorials' command line; its other options are tested above.
      {{"-b", "64M", "-e", "4G", "-f", "2", "-c", "0", "-n", "100", "-g", "8"},
       {64 * mega, 128 * mega, 256 * mega, 512 * mega, 1024 * mega, 2048 * mega, 4096 * mega}},
      {{"--sweep", "-e", "64"}, {8, 16, 32, 64}},
      {{"--sweep", "-b", "16M", "-f", "4"}, {16 * mega, 64 * mega}},
  };
  for (const auto& [words, sizes] : cases) given(words, [&](const Options& o) { EXPECT_EQ(o.sizes(), sizes); });
  given({"-b", "1", "-e", "1048576G", "-f", "2"}, [](const Options& o) { EXPECT_EQ(o.sizes().size(), 51u); });
}

TEST(Refusal, NamesTheOptionAndWhatIsAllowed) {
  const std::string see = " is invalid; see --help";
  for (const std::string text : {"x", "20x", "99999999999999999999"})
    expect_refused({"-n", text}, "the argument ('" + text + "') for option '--iters'" + see);
  expect_refused({"-n", ""}, "the argument for option '--iters'" + see);
  expect_refused({"-n", "0"}, "--iters must be from 1 to 1000000000, not 0");
  expect_refused({"-w", "-1"}, "--warmup_iters must be from 0 to 1000000000, not -1");
  expect_refused({"-c", "-1"}, "--check must be from 0 to 1000000000, not -1");
  expect_refused({"-N", "-1"}, "--run_cycles must be from 0 to 1000000000, not -1");
  expect_refused({"-g", "0"}, "--ngpus must be from 1 to 1024, not 0");
  expect_refused({"--corrupt", "x"}, "the argument ('x') for option '--corrupt'" + see);

  const std::string size = " must be a size such as 512, 64K, 64M or 4G, not '";
  expect_refused({"-b", "64MB"}, "--minbytes" + size + "64MB'");
  expect_refused({"-e", "-1"}, "--maxbytes" + size + "-1'");
  expect_refused({"-b", "0"}, "--minbytes must be from 1 to 1048576G, not 0");
  expect_refused({"-e", "1048577G"}, "--maxbytes must be from 1 to 1048576G, not 1048577G");
  for (const std::string text : {"1", "0.5", "0", "-2", "nan", "inf", "1e+30"})
    expect_refused({"-f", text}, "--stepfactor must be a number above 1, at most 1000000, not " + text);
  expect_refused({"-f", "2x"}, "the argument ('2x') for option '--stepfactor'" + see);
  for (const std::string text : {"fp16", ""})
    expect_refused({"-d", text},
                   "--datatype must be one of float, double, half, bfloat16, int8, uint8, int32, uint32, int64, uint64 "
                   "or all, not '" +
                       text + "'");
}

TEST(Refusal, OfWhatDoesNotGoTogether) {
  expect_refused({"-b", "64M"},
                 "-b (--minbytes) is 67108864, above -e (--maxbytes), which is 33554432 by "
                 "default");
  expect_refused({"-b", "2", "-e", "1"}, "-b (--minbytes) is 2, above -e (--maxbytes), which is 1");
  expect_refused({"-e", "1024G"},
                 "more than 100000 sizes from -b (--minbytes) to -e (--maxbytes): take larger steps with -f "
                 "(--stepfactor)");
  const std::string why =
      "--sweep adapts the numbers of calls to each size: leave out -n (--iters) and -w (--warmup_iters), or --sweep";
  expect_refused({"--sweep", "-n", "20"}, why);
  expect_refused({"--sweep", "-w", "1"}, why);
}

TEST(Refusal, OfWhatIsNoOption) {
  expect_refused({"--iter", "3"}, "unrecognised option '--iter'; see --help");
  // nccl-tests' options that are not here.
  for (const std::string letter : {"-t", "-o", "-r", "-i", "-G", "-a", "-m", "-T", "-J", "-S"})
    expect_refused({letter, "1"}, "unrecognised option '" + letter + "'; see --help");
  expect_refused({"8"}, "only options are expected, no other words; see --help");
  expect_refused({"-n"}, "the required argument for option '--iters' is missing; see --help");
  expect_refused({"-b", "-e", "8"}, "the required argument for option '--minbytes' is missing; see --help");
  expect_refused({"-n", "1", "-n", "2"}, "option '--iters' cannot be specified more than once; see --help");
}

}  // namespace options_test
