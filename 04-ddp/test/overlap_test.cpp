// The arithmetic of times: medians, and how much of the communication is hidden.
#include "ddp/overlap.hpp"
#include "ddp/step_times.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sstream>
#include <stdexcept>

namespace overlap_test {

ddp::Overlap of(double overlapped, double serial, double compute, double communication) {
  ddp::Overlap overlap;
  for (std::size_t i = 0; const double median : {overlapped, serial, compute, communication})
    overlap.times[i++] = {median, median / 2, median * 2};
  return overlap;
}

TEST(Overlap, IsThePartOfTheCommunicationThatTheStepDoesNotWaitFor) {
  const ddp::Overlap all = of(5, 7, 5, 2);  // computation hides everything
  EXPECT_DOUBLE_EQ(all.hidden(0), 1);
  EXPECT_DOUBLE_EQ(all.hidden(1), 0);
  EXPECT_DOUBLE_EQ(all.over_longer(), 1);

  const ddp::Overlap most = of(4.5, 8.1, 4, 4);
  EXPECT_DOUBLE_EQ(most.hidden(0), 0.875);
  EXPECT_NEAR(most.hidden(1), -0.025, 1e-12);
  EXPECT_DOUBLE_EQ(most.over_longer(), 1.125);

  const ddp::Overlap communication_bound = of(8, 9, 1, 8);  // it cannot be more than 1 of 8
  EXPECT_DOUBLE_EQ(communication_bound.hidden(0), 0.125);
  EXPECT_DOUBLE_EQ(communication_bound.over_longer(), 1);
}

TEST(Overlap, IsPrintedInMillisecondsAndWrittenInSeconds) {
  std::ostringstream table;
  print(table, of(4.5, 8.1, 4, 4));
  EXPECT_NE(table.str().find("\noverlapped               4500.0  2250.0   9000.0  0.875\n"), std::string::npos)
      << table.str();
  EXPECT_NE(table.str().find("1.125 x the longer"), std::string::npos) << table.str();
  const nlohmann::json json = json_of(of(4.5, 8.1, 4, 4));
  EXPECT_EQ(json.at("serial").at("lowest_s"), 4.05);
  EXPECT_EQ(json.at("hidden"), 0.875);
  EXPECT_EQ(json.at("over_longer"), 1.125);
}

}  // namespace overlap_test
