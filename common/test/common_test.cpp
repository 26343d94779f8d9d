// Options, reports, error checks, temporary folders.
#include <multinode/base/options.hpp>
#include <multinode/base/program_options.hpp>
#include <multinode/world/report.hpp>
#include <testing/says.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <sstream>
#include <system_error>

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
  EXPECT_THROW(parsed({"--seed", "x"}), UsageError);
}

TEST(Options, MessagesNameTheOption) {
  EXPECT_SAYS(error_text<UsageError>([] { parsed({"--cuont", "3"}); }), "--cuont");
}

TEST(Options, Sizes) {
  EXPECT_EQ(parse_size("512", "-b"), 512u);
  EXPECT_EQ(parse_size("64M", "-b"), 64u << 20);
  EXPECT_EQ(parse_size("4G", "-b"), std::size_t{4} << 30);
  for (const char* bad : {"", "M", "-1", "1.5M", "1MB", "1m", "99999999999999999999", "99999999999G", " 1", "1 "})
    EXPECT_THROW(parse_size(bad, "-b"), UsageError) << bad;
}

TEST(Options, Ranges) {
  EXPECT_NO_THROW(require_range("--n", 3, 1, 3));
  EXPECT_THROW(require_range("--n", 4, 1, 3), UsageError);
  EXPECT_THROW(require_range("--x", std::nan(""), 0.0, 1.0), UsageError);
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

TEST(Check, ErrnoBecomesAnExceptionWithItsPlace) {
  errno = ENOENT;
  try {
    check_errno(-1, "open it");
    FAIL();
  } catch (const std::system_error& e) {
    EXPECT_EQ(e.code().value(), ENOENT);
    EXPECT_EQ(std::string(e.what()).rfind("common_test.cpp:", 0), 0u) << e.what();
  }
  EXPECT_EQ(check_errno(5, "count"), 5);
}

TEST(TemporaryFolder, HoldsFilesAndIsRemovedWithItsObject) {
  std::filesystem::path inner_path;
  const multinode::testing::TemporaryFolder folder;
  {
    const multinode::testing::TemporaryFolder inner(folder.path());
    inner_path = inner.path();
    EXPECT_EQ(inner_path.parent_path(), folder.path());
    inner.write("a/b", "text");
    EXPECT_EQ(multinode::testing::text_of(inner / "a/b"), "text\n");
    std::filesystem::create_symlink("/dev/full", inner / "full");
    EXPECT_THROW(inner.write("full", "text"), std::runtime_error);
  }
  EXPECT_FALSE(std::filesystem::exists(inner_path));
  EXPECT_EQ(multinode::testing::text_of(inner_path / "a/b"), "");
  EXPECT_THROW(multinode::testing::TemporaryFolder{inner_path}, std::system_error);
}

}  // namespace
