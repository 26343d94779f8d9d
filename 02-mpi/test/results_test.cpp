#include "benchmark/results.hpp"

#include <test/support/json_lines.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>
#include <sstream>

namespace results_test {

using namespace perf;

Result all_reduce(std::size_t size = 1 << 20, double time = 135.84e-6) {
  Result result;
  result.collective = "all_reduce";
  result.backend = "mpi";
  result.ranks = 4;
  result.size = result.asked_size = size;
  result.count = size / 4;
  result.type = "float";
  result.redop = "sum";
  result.iterations = 100;
  result.time = time;
  result.median = 0.97 * time;
  result.p99 = 1.4 * time;
  result.algbw = static_cast<double>(size) / time;
  result.busbw = 1.5 * *result.algbw;
  result.wrong = 0;
  result.rank_times = {1.00e-6, 1.02e-6, 1.04e-6, 1.10e-6};
  result.spread = 0.1 / 1.03;
  return result;
}

Result in_place(Result result) {
  result.in_place = true;
  return result;
}

Result of_one_rank() {
  Result result = all_reduce();
  result.ranks = 1;
  result.busbw.reset();
  result.rank_times = {1e-6};
  result.spread.reset();
  return result;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

// The lines of a table: 3 of its head, and those of one row.
std::vector<std::string> table(const std::vector<Result>& places) {
  std::ostringstream out;
  print_head(out);
  print_row(out, places);
  return lines_of(out.str());
}

// The lines of a table's end: what is wrong; the average bandwidth.
std::vector<std::string> foot(const std::vector<Result>& all) {
  std::ostringstream out;
  print_foot(out, all);
  return lines_of(out.str());
}

TEST(ResultTable, HeadAndRowStandInColumns) {
  Result result = all_reduce();
  result.median = 130.1e-6;
  result.p99 = 201.25e-6;
  result.wrong = 7;
  EXPECT_EQ(
      table({result, in_place(all_reduce(1 << 20, 5.8014e-6))}),
      (std::vector<std::string>{
          "#                                                               out-of-place                       in-place"
          "                   out-of-place                in-place",
          "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   "
          "busbw  #wrong   median      p99  spread   median      p99  spread",
          "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  "
          "(GB/s)             (us)     (us)     (%)     (us)     (us)     (%)",
          "     1048576        262144     float     sum      -1    135.8   7.719   11.58       7    5.801   180.7   "
          "271.1       0    130.1    201.2   9.709    5.627    8.122   9.709"}));
}

TEST(ResultTable, WhatDoesNotExistIsNotANumber) {
  Result result = of_one_rank();
  result.wrong.reset();
  EXPECT_EQ(words_of(table({result}).at(3)),
            (std::vector<std::string>{"1048576", "262144", "float", "sum", "-1", "135.8", "7.719", "n/a", "n/a", "n/a",
                                      "n/a", "n/a", "n/a", "131.8", "190.2", "n/a", "n/a", "n/a", "n/a"}));
}

TEST(ResultTable, LateRankIsNamedBelowItsRow) {
  Result result = all_reduce();
  result.rank_times = {100e-6, 102e-6, 98e-6, 812.44e-6};
  result.late = {3};
  Result other = in_place(result);
  other.rank_times = {800e-6, 100e-6, 100e-6, 700e-6, 100e-6};
  other.late = {0, 3};
  const auto lines = table({result, other});
  ASSERT_EQ(lines.size(), 7u);
  EXPECT_EQ(lines[4], "# rank 3 is late out of place: 812.4 us, where the median of the ranks is 101.0 us");
  EXPECT_EQ(lines[5], "# rank 0 is late in place: 800.0 us, where the median of the ranks is 100.0 us");
  EXPECT_EQ(lines[6], "# rank 3 is late in place: 700.0 us, where the median of the ranks is 100.0 us");
}

TEST(ResultTable, FootCountsWhatIsWrongAndAveragesBusBandwidths) {
  Result right = all_reduce(), wrong = all_reduce(), unchecked = all_reduce();
  right.busbw = 1e9;
  wrong.wrong = 3;
  wrong.busbw = 2.5e9;
  unchecked.wrong.reset();
  EXPECT_EQ(foot({right, right})[0], "# Out of bounds values : 0 OK");
  EXPECT_EQ(foot({right, wrong, wrong})[0], "# Out of bounds values : 6 FAILED");
  EXPECT_EQ(foot({unchecked, wrong})[0], "# Out of bounds values : 3 FAILED");
  EXPECT_EQ(foot({right, unchecked})[0], "# Out of bounds values : not checked");
  EXPECT_EQ(foot({})[0], "# Out of bounds values : not checked");
  EXPECT_EQ(foot({right, wrong})[1], "# Avg bus bandwidth    : 1.750");
  EXPECT_EQ(foot({of_one_rank()})[1], "# Avg bus bandwidth    : n/a");
}

TEST(Results, JsonNamesUnitsAndValues) {
  Result result = all_reduce(1000, 2e-6);
  result.rank_times = {1e-6, 3e-6};
  result.median = 1e-6;
  result.p99 = 4e-6;
  result.spread = 0.5;
  result.late = {0, 1};
  result.cycle = 2;
  result.calls_per_sample = 5;
  EXPECT_EQ(to_json(result), multinode::parse_json(R"({"collective": "all_reduce", "backend": "mpi", "ranks": 4,
      "size_bytes": 1000, "count": 250, "type": "float", "redop": "sum", "in_place": false, "cycle": 2,
      "iterations": 100, "calls_per_sample": 5, "time_us": 2.0, "median_us": 1.0, "p99_us": 4.0, "algbw_gb_per_s": 0.5,
      "busbw_gb_per_s": 0.75, "wrong": 0, "rank_times_us": [1.0, 3.0], "spread_percent": 50.0,
      "late_ranks": [0, 1]})"));
  Result without = result;
  without.busbw = without.spread = std::nullopt;
  without.wrong.reset();
  without.late = {};
  for (const char* name : {"busbw_gb_per_s", "wrong", "spread_percent"}) EXPECT_TRUE(to_json(without)[name].is_null());
}

// Every number of the table is that of the JSON, rounded at the table's last digit; and that digit is fine enough.
TEST(Results, TableIsTheRoundedJson) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> exponent(-7, 1), factor(1, 2);
  const std::array names = {"time_us",   "algbw_gb_per_s", "busbw_gb_per_s", "wrong",
                            "median_us", "p99_us",         "spread_percent"};
  for (int i = 0; i < 1000; ++i) {
    Result result = all_reduce(random() % 100'000'000, std::pow(10, exponent(random)));
    result.median = result.time / factor(random);
    result.p99 = result.time * factor(random);
    result.busbw = *result.algbw * factor(random);
    result.wrong = random() % 3;
    result.spread = factor(random) - 1;
    const std::array places = {result, in_place(all_reduce(result.size, result.time * factor(random)))};
    const auto words = words_of(table({places.begin(), places.end()}).at(3));
    ASSERT_EQ(words.size(), 19u);
    EXPECT_EQ(words[0], std::to_string(result.size));
    EXPECT_EQ(words[1], std::to_string(result.count));
    for (std::size_t place = 0; place < 2; ++place)
      for (std::size_t column = 0; column < names.size(); ++column) {
        const std::string& word = words[column < 4 ? 5 + 4 * place + column : 9 + 3 * place + column];
        const double exact = to_json(places[place])[names[column]].get<double>();
        const std::size_t point = word.find('.');
        const double digit =
            std::pow(10, point == std::string::npos ? 0 : -static_cast<double>(word.size() - point - 1));
        ASSERT_NEAR(std::stod(word), exact, 0.5 * digit * (1 + 1e-6)) << names[column];
        ASSERT_LE(digit, column == 3 ? 1 : std::max(1.0001e-4, exact / 999)) << names[column] << " is " << word;
      }
  }
}

Result with_busbw(std::size_t size, double busbw) {
  Result result = all_reduce(size);
  result.busbw = busbw;
  return result;
}

TEST(TooSlow, NamesWhatIsBelowTheBoundFromItsSizeOn) {
  std::vector<Result> results = {with_busbw(8, 1e9), with_busbw(1023, 5e9), with_busbw(1024, 5e9)};
  results.push_back(in_place(results.back()));
  const std::string asked = "--min-busbw asks for 10 GB/s from 1 KiB: all_reduce of 1 KiB (float, sum, ";
  EXPECT_EQ(too_slow(results, {10e9, 1024}),
            (std::vector<std::string>{asked + "out of place) has 5.000 GB/s", asked + "in place) has 5.000 GB/s"}));
  EXPECT_EQ(too_slow(results, {5e9, 1023}), std::vector<std::string>{});
  EXPECT_EQ(too_slow(results, {5e9, 0}).size(), 1u);
  // Rounded down to whole elements of three ranks, a size is still what was asked for.
  results.back().size = 1020;
  EXPECT_EQ(too_slow(results, {10e9, 1024}).size(), 2u);
}

TEST(TooSlow, WhatHasNoBusBandwidthIsNotFastEnough) {
  EXPECT_EQ(too_slow(std::vector{of_one_rank()}, {1e9, 0}),
            std::vector<std::string>{
                "--min-busbw asks for 1 GB/s from 0 B: nothing was tested, no such size has a bus bandwidth"});
  EXPECT_EQ(too_slow(std::vector{with_busbw(8, std::nan(""))}, {1e9, 0}).size(), 1u);
}

}  // namespace results_test
