// says.hpp: checks of texts: a program's output, the text of an exception.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

namespace multinode::testing {

inline ::testing::AssertionResult says(std::string_view text, std::string_view what) {
  if (text.find(what) != text.npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "looked for '" << what << "' in:\n" << text;
}
// Expects that `text` contains `what`.
#define EXPECT_SAYS(text, what) EXPECT_TRUE(multinode::testing::says(text, what))

// For <regex>, which takes seconds in each file that uses it. A match is its text, and then its groups.
using Match = std::vector<std::string>;
Match match_in(const std::string& text, const std::string& pattern);  // the first; empty: none
std::vector<Match> matches_in(const std::string& text, const std::string& pattern);
bool is_like(const std::string& text, const std::string& pattern);  // all of it
// Expects that a part of `text` matches `pattern`.
#define EXPECT_MATCH(text, pattern) EXPECT_FALSE(multinode::testing::match_in(text, pattern).empty()) << (text)

// Expects that function() throws an Error whose text is one line. Returns the text.
template <class Error, class Function>
std::string error_text(Function&& function) try {
  function();
  ADD_FAILURE() << "no exception";
  return "";
} catch (const Error& error) {
  EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
  return error.what();
}

}  // namespace multinode::testing
