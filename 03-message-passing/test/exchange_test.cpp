#include "message_passing/exchange.hpp"

#include <multinode/program_options.hpp>

#include <gtest/gtest.h>

#include <vector>

namespace {

TEST(Exchange, ARightBlockIsRight) {
  std::vector<std::int32_t> block(1001);
  fill(block, 2, 7);
  EXPECT_EQ(count_wrong(block, 2, 7), 0u);
}

TEST(Exchange, EveryDamageShows) {
  std::vector<std::int32_t> block(1001);
  fill(block, 2, 7);
  EXPECT_GT(count_wrong(block, 1, 7), 900u) << "another rank's block";
  EXPECT_GT(count_wrong(block, 2, 6), 900u) << "an earlier round's block";
  EXPECT_GT(count_wrong(std::span(block).subspan(1), 2, 7), 900u) << "a shifted block";
  for (const std::size_t i : {0u, 500u, 1000u}) {
    block[i] ^= 1 << 30;
    EXPECT_EQ(count_wrong(block, 2, 7), 1u) << "one bit of element " << i;
    block[i] ^= 1 << 30;
  }
}

multinode::Program parsed(ExchangeOptions& options, std::vector<const char*> words) {
  words.insert(words.begin(), "message_passing");
  multinode::Program program = options.program("message_passing");
  boost::program_options::options_description known = *program.options;
  known.add(options.common.description());
  multinode::parse_command_line(int(words.size()), words.data(), known, false);
  program.validate();
  return program;
}

TEST(Exchange, OptionsAreStrict) {
  ExchangeOptions options;
  parsed(options, {"--count", "2K", "--rounds", "3"});
  EXPECT_EQ(options.count, 2048u);
  EXPECT_EQ(options.rounds, 3);
  using multinode::UsageError;
  EXPECT_THROW(parsed(options, {"--count", "0"}), UsageError);
  EXPECT_THROW(parsed(options, {"--count", "-1"}), UsageError);
  EXPECT_THROW(parsed(options, {"--count", "4Q"}), UsageError);
  EXPECT_THROW(parsed(options, {"--count", "99999999999999999999G"}), UsageError);
  EXPECT_THROW(parsed(options, {"--rounds", "0"}), UsageError);
  EXPECT_THROW(parsed(options, {"--roun", "1"}), UsageError) << "an abbreviation";
  EXPECT_THROW(parsed(options, {"3"}), UsageError) << "a stray word";
  EXPECT_THROW(parsed(options, {"--timeout", "nan"}), UsageError);
  EXPECT_THROW(parsed(options, {"--timeout", "0"}), UsageError);
}

}  // namespace
