#include "tasks/functions.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>

namespace task_functions_test {

using nlohmann::json;

class Functions : public testing::Test {
 protected:
  Functions() {
    functions_.add("area", [](double width, std::int32_t height) { return width * height; });
    functions_.add("nothing", [] {});
    functions_.add("of", [](std::uint8_t small) { return small; });
  }

  std::string refusal(const std::string& name, const json& arguments) {
    try {
      functions_.call(name, arguments);
      return "";
    } catch (const std::invalid_argument& e) {
      return e.what();
    }
  }

  tasks::Functions functions_;
};

TEST_F(Functions, AreCalledByNameWithConvertedArguments) {
  EXPECT_EQ(functions_.call("area", {1.5, 4}), 6.0);
  EXPECT_EQ(functions_.call("area", {2, 4}), 8.0);
  EXPECT_EQ(functions_.call("nothing", json::array()), json());
  EXPECT_EQ(functions_.call("of", {255}), 255);
}

TEST_F(Functions, RefuseWhatDoesNotFitAndSayWhy) {
  EXPECT_EQ(refusal("volume", json::array()), "the library has no such function; it has: area, nothing, of");
  EXPECT_EQ(refusal("area", {1}), "it takes 2 arguments, not 1");
  EXPECT_EQ(refusal("area", {1, 2, 3}), "it takes 2 arguments, not 3");
  EXPECT_EQ(refusal("area", {{"width", 1}, {"height", 2}}), "the arguments are no array");
  EXPECT_EQ(refusal("area", {1, 2.5}), "argument 2: 2.5 is no integer of 32 bits");
  EXPECT_EQ(refusal("area", {1, 1LL << 31}), "argument 2: 2147483648 is no integer of 32 bits");
  EXPECT_EQ(refusal("area", {1, "\xff"}), "argument 2: \"\xEF\xBF\xBD\" is no integer of 32 bits");
  EXPECT_EQ(refusal("of", {-1}), "argument 1: -1 is no integer of 8 bits");
  EXPECT_NE(refusal("area", {"wide", 2}).find("argument 1: "), std::string::npos);
}

TEST_F(Functions, HaveOneNameEach) {
  EXPECT_THROW(functions_.add("of", [] {}), std::logic_error);
}

}  // namespace task_functions_test
