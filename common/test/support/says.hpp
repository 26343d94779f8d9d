// says.hpp: checks of texts: a program's output, the text of an exception.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace multinode::testing {

inline ::testing::AssertionResult says(std::string_view text, std::string_view what) {
  if (text.find(what) != text.npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "looked for '" << what << "' in:\n" << text;
}
// Expects that `text` contains `what`.
#define EXPECT_SAYS(text, what) EXPECT_TRUE(multinode::testing::says(text, what))

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
