// Options and reports.
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/world/report.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace {

using namespace multinode;
using multinode::testing::error_text;
namespace po = boost::program_options;

bool parsed(std::vector<const char*> words) {
  words.insert(words.begin(), "program");
  CommonOptions common;
  po::options_description known;
  known.add(common.description());
  return parse_command_line(static_cast<int>(words.size()), words.data(), known, false);
}

TEST(Options, HelpWinsOverInvalidOptions) { EXPECT_FALSE(parsed({"--help", "--timeout", "-3"})); }

TEST(Options, AbbreviationsAndStrayWordsAreRefused) {
  EXPECT_TRUE(parsed({"--timeout", "0.5"}));
  EXPECT_THROW(parsed({"--time", "3"}), UsageError);
  EXPECT_THROW(parsed({"stray"}), UsageError);
  EXPECT_THROW(parsed({"--timeout"}), UsageError);
  for (const char* bad : {"0", "-1", "nan", "inf", "1e99", "soon", ""})
    EXPECT_THROW(parsed({"--timeout", bad}), UsageError) << bad;
  for (const char* bad : {"x", "1.5", "18446744073709551616"}) EXPECT_THROW(parsed({"--seed", bad}), UsageError) << bad;
  EXPECT_EQ(error_text<UsageError>([] { parsed({"--seed=-1"}); }), "--seed must not be negative, as -1 is; see --help");
}

TEST(Options, Sizes) {
  EXPECT_EQ(parse_size("512", "-b"), 512u);
  EXPECT_EQ(parse_size("64M", "-b"), 64u << 20);
  EXPECT_EQ(parse_size("4G", "-b"), std::size_t{4} << 30);
  for (const char* bad : {"", "M", "-1", "1.5M", "1MB", "1m", "99999999999999999999", "99999999999G", " 1", "1 "})
    EXPECT_THROW(parse_size(bad, "-b"), UsageError) << bad;
}

TEST(Report, ColumnsAreAligned) {
  Table table({"rank", "host", "time"});
  table.add({"0", "né", "1.5"});
  table.add({"10", "node-b", "12.25"});
  std::ostringstream out;
  table.print(out);
  EXPECT_EQ(out.str(),
            "rank  host     time\n"
            "   0  né        1.5\n"
            "  10  node-b  12.25\n");
  EXPECT_THROW(table.add({"too", "few"}), std::logic_error);
}

TEST(Report, AFileThatCannotBeWrittenIsNamed) {
  EXPECT_SAYS(error_text<UsageError>([] { JsonLines("/nonexistent/result.json"); }), "/nonexistent/result.json");
  JsonLines full("/dev/full");
  EXPECT_THROW(full.write({{"a", 1}}), std::runtime_error);
  EXPECT_NO_THROW(JsonLines("").write({{"a", 1}}));
}

}  // namespace
