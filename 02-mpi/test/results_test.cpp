#include "benchmark/results.hpp"
#include "benchmark/options.hpp"

#include <testing/says.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <ctime>
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
  result.spread = 0;
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

std::vector<std::string> split(const std::string& line) {
  std::vector<std::string> cells(1);
  for (const char c : line) c == ',' ? cells.emplace_back() : cells.back() += c;
  return cells;
}

std::vector<std::string> rows(const Result& out_of_place, const std::optional<Result>& in_place,
                              bool timestamps = false) {
  std::ostringstream out;
  ResultTable(out, timestamps).row(out_of_place, in_place);
  return lines_of(out.str());
}

std::string foot(const std::vector<Result>& all) {
  std::ostringstream out;
  ResultTable(out, false).foot(all);
  return out.str();
}

TEST(FourDigits, OfEveryMagnitude) {
  EXPECT_EQ(four_digits(0), "0.0000");
  EXPECT_EQ(four_digits(0.00123), "0.0012");
  EXPECT_EQ(four_digits(0.123456), "0.1235");
  EXPECT_EQ(four_digits(5.80149), "5.801");
  EXPECT_EQ(four_digits(13.5849), "13.58");
  EXPECT_EQ(four_digits(135.849), "135.8");
  EXPECT_EQ(four_digits(1358.4), "1358");
  EXPECT_EQ(four_digits(1234567.8), "1234568");
  EXPECT_EQ(four_digits(9.99996), "10.000");
}

TEST(SizeText, UsesPowersOf1024) {
  EXPECT_EQ(size_text(0), "0 B");
  EXPECT_EQ(size_text(8), "8 B");
  EXPECT_EQ(size_text(1023), "1023 B");
  EXPECT_EQ(size_text(1536), "1.5 KiB");
  EXPECT_EQ(size_text(64 << 20), "64 MiB");
  EXPECT_EQ(size_text(std::size_t{4} << 30), "4 GiB");
}

TEST(ResultTable, HeadAndRowStandInColumns) {
  std::ostringstream out;
  ResultTable table(out, false);
  table.head();
  Result result = all_reduce();
  result.median = 130.1e-6;
  result.p99 = 201.25e-6;
  result.root = 2;
  result.wrong = 7;
  table.row(result, in_place(all_reduce(1 << 20, 5.8014e-6)));
  const auto lines = lines_of(out.str());
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(
      lines[0],
      "#                                                               out-of-place                       in-place"
      "                   out-of-place                in-place");
  EXPECT_EQ(lines[1],
            "#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   "
            "busbw  #wrong   median      p99  spread   median      p99  spread");
  EXPECT_EQ(lines[2],
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  "
            "(GB/s)             (us)     (us)     (%)     (us)     (us)     (%)");
  EXPECT_EQ(lines[3],
            "     1048576        262144     float     sum       2    135.8   7.719   11.58       7    5.801   180.7   "
            "271.1       0    130.1    201.2   9.709    5.627    8.122   9.709");
}

TEST(ResultTable, WhatDoesNotExistIsNotANumber) {
  Result result = of_one_rank();
  result.wrong.reset();
  const auto words = words_of(rows(result, std::nullopt).at(0));
  ASSERT_EQ(words.size(), 19u);
  EXPECT_EQ(std::vector(words.begin() + 5, words.end()),
            (std::vector<std::string>{"135.8", "7.719", "n/a", "n/a", "n/a", "n/a", "n/a", "n/a", "131.8", "190.2",
                                      "n/a", "n/a", "n/a", "n/a"}));
}

TEST(ResultTable, WideNumbersStayApart) {
  Result result = all_reduce(std::size_t{1} << 50, 1e6);
  result.type = "bfloat16";
  result.wrong = 123456789012;
  result.rank_times = {1e-6, 1};
  result.spread = 1e6;
  EXPECT_EQ(words_of(rows(result, in_place(result)).at(0)).size(), 19u);
}

TEST(ResultTable, TimestampIsTheLastColumn) {
  std::ostringstream out;
  ResultTable table(out, true);
  table.head();
  table.row(all_reduce(), in_place(all_reduce()));
  const auto lines = lines_of(out.str());
  EXPECT_EQ(words_of(lines[1]).back(), "timestamp");
  const auto words = words_of(lines[3]);
  ASSERT_EQ(words.size(), 20u);
  std::tm time{};
  const char* end = strptime(words.back().c_str(), "%Y-%m-%dT%H:%M:%SZ", &time);
  EXPECT_TRUE(end && *end == '\0' && words.back().size() == 20) << words.back();
}

TEST(ResultTable, LateRankIsNamedBelowItsRow) {
  Result result = all_reduce();
  result.rank_times = {100e-6, 102e-6, 98e-6, 812.44e-6};
  result.late = {3};
  Result other = in_place(result);
  other.rank_times = {800e-6, 100e-6, 100e-6, 700e-6, 100e-6};
  other.late = {0, 3};
  const auto lines = rows(result, other);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[1], "# rank 3 is late out of place: 812.4 us, where the median of the ranks is 101.0 us");
  EXPECT_EQ(lines[2], "# rank 0 is late in place: 800.0 us, where the median of the ranks is 100.0 us");
  EXPECT_EQ(lines[3], "# rank 3 is late in place: 700.0 us, where the median of the ranks is 100.0 us");
}

TEST(ResultTable, FootCountsWhatIsWrong) {
  Result wrong = all_reduce(), unchecked = all_reduce();
  wrong.wrong = 3;
  unchecked.wrong.reset();
  const auto verdict = [](const std::vector<Result>& all) { return lines_of(foot(all)).at(0); };
  EXPECT_EQ(verdict({all_reduce(), all_reduce()}), "# Out of bounds values : 0 OK");
  EXPECT_EQ(verdict({all_reduce(), wrong, wrong}), "# Out of bounds values : 6 FAILED");
  EXPECT_EQ(verdict({unchecked, wrong}), "# Out of bounds values : 3 FAILED");
  EXPECT_EQ(verdict({all_reduce(), unchecked}), "# Out of bounds values : not checked");
  EXPECT_EQ(verdict({}), "# Out of bounds values : not checked");
}

TEST(ResultTable, FootAveragesBusBandwidths) {
  Result slow = all_reduce(), fast = all_reduce();
  slow.busbw = 1e9;
  fast.busbw = 2.5e9;
  const auto average = [](const std::vector<Result>& all) { return lines_of(foot(all)).at(1); };
  EXPECT_EQ(average({slow, fast}), "# Avg bus bandwidth    : 1.750");
  EXPECT_EQ(average({of_one_rank()}), "# Avg bus bandwidth    : n/a");
}

TEST(Json, NamesUnitsAndValues) {
  Result result = all_reduce(1000, 2e-6);
  result.rank_times = {1e-6, 3e-6};
  result.median = 1e-6;
  result.p99 = 4e-6;
  result.spread = 0.5;
  result.late = {1};
  result.cycle = 2;
  result.calls_per_sample = 5;
  EXPECT_EQ(to_json(result),
            nlohmann::json::parse(R"({"collective": "all_reduce", "backend": "mpi", "ranks": 4, "size_bytes": 1000,
      "count": 250, "type": "float", "redop": "sum", "root": -1, "in_place": false, "cycle": 2, "iterations": 100,
      "calls_per_sample": 5, "time_us": 2.0, "median_us": 1.0, "p99_us": 4.0, "algbw_gb_per_s": 0.5,
      "busbw_gb_per_s": 0.75, "wrong": 0, "rank_times_us": [1.0, 3.0], "spread_percent": 50.0, "late_ranks": [1]})"));
}

TEST(Csv, HasTheNamesAndNumbersOfTheJson) {
  Result first = all_reduce(), second = of_one_rank();
  first.late = {0, 3};
  second.wrong.reset();
  const multinode::testing::TemporaryFolder folder;
  const auto file = folder / "results.csv";
  {
    Csv csv(file);
    csv.write(first);
    csv.write(second);
  }
  const auto lines = lines_of(multinode::testing::text_of(file));
  ASSERT_EQ(lines.size(), 3u);
  const auto names = split(lines[0]);
  EXPECT_EQ(names.size(), to_json(first).size());
  std::size_t line = 1;
  for (const Result& result : {first, second}) {
    const nlohmann::json json = to_json(result);
    const auto cells = split(lines[line++]);
    ASSERT_EQ(cells.size(), names.size());
    for (std::size_t i = 0; i < names.size(); ++i) {
      const nlohmann::json& value = json.at(names[i]);
      std::string expected = value.is_null() ? "" : value.is_string() ? value.get<std::string>() : value.dump();
      if (value.is_array()) {  // [1,2] as "1 2"
        expected = expected.substr(1, expected.size() - 2);
        std::ranges::replace(expected, ',', ' ');
      }
      EXPECT_EQ(cells[i], expected) << names[i];
    }
  }
}

TEST(Csv, NamesTheFileThatCannotBeWritten) {
  EXPECT_EQ(multinode::testing::error_text<multinode::UsageError>([] { Csv("/nowhere/x.csv"); }),
            "--csv: cannot write /nowhere/x.csv: No such file or directory");
  Csv full("/dev/full");
  EXPECT_EQ(multinode::testing::error_text<std::runtime_error>([&] { full.write(all_reduce()); }),
            "cannot write /dev/full: No space left on device");
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
    const Result other = in_place(all_reduce(result.size, result.time * factor(random)));
    const auto words = words_of(rows(result, other).at(0));
    ASSERT_EQ(words.size(), 19u);
    const nlohmann::json out_json = to_json(result), in_json = to_json(other);
    EXPECT_EQ(words[0], out_json["size_bytes"].dump());
    EXPECT_EQ(words[1], out_json["count"].dump());
    for (std::size_t column = 0; column < names.size(); ++column)
      for (const bool is_in_place : {false, true}) {
        const std::string& word =
            column < 4 ? words[column + (is_in_place ? 9 : 5)] : words[column + (is_in_place ? 12 : 9)];
        const double exact = (is_in_place ? in_json : out_json)[names[column]].get<double>();
        const std::size_t point = word.find('.');
        const double digit =
            std::pow(10, point == std::string::npos ? 0 : -static_cast<double>(word.size() - point - 1));
        ASSERT_NEAR(std::stod(word), exact, 0.5 * digit * (1 + 1e-6)) << names[column];
        ASSERT_LE(digit, column == 3 ? 1 : std::max(1.0001e-4, exact / 999)) << names[column] << " is " << word;
      }
  }
}

TEST(TooSlow, NamesWhatIsBelowTheBoundOfItsBand) {
  std::vector<Result> results;
  for (const std::size_t size : {8u, 1u << 20, 64u << 20, 128u << 20}) {
    results.push_back(all_reduce(size));
    results.back().busbw = 5e9;
  }
  results[3].in_place = true;
  const std::vector<LeastBusbw> bands = {{5e9, 0}, {4e9, 1 << 20}, {10e9, 64 << 20}};
  EXPECT_EQ(too_slow(results, bands),
            (std::vector<std::string>{
                "--min-busbw asks for 10 GB/s from 64 MiB: all_reduce of 64 MiB (float, sum, out of place) has 5.000 "
                "GB/s",
                "--min-busbw asks for 10 GB/s from 64 MiB: all_reduce of 128 MiB (float, sum, in place) has 5.000 "
                "GB/s"}));
  EXPECT_TRUE(too_slow(results, {}).empty());
}

TEST(TooSlow, BandEndsWhereTheNextBegins) {
  std::vector<Result> results = {all_reduce(1023), all_reduce(1024)};
  results[0].busbw = 1e9;
  results[1].busbw = 2e9;
  const std::vector<LeastBusbw> right = {{1e9, 0}, {2e9, 1024}}, turned = {{2e9, 1024}, {1e9, 0}};
  EXPECT_TRUE(too_slow(results, right).empty());
  EXPECT_TRUE(too_slow(results, turned).empty());
  const std::vector<LeastBusbw> falling = {{1e9, 0}, {0.5e9, 1023}, {2e9, 1024}},
                                at_1023 = {{2e9, 0}, {1e9, 1023}, {2e9, 1024}};
  EXPECT_EQ(too_slow(results, falling).size(), 1u);  // nothing below 1023
  EXPECT_EQ(too_slow(results, at_1023).size(), 1u);
  const std::vector<LeastBusbw> three = {{1.5e9, 1023}, {2e9, 1024}, {9e9, 1 << 20}};
  EXPECT_EQ(too_slow(results, three),
            (std::vector<std::string>{
                "--min-busbw asks for 1.5 GB/s from 1023 B up to 1 KiB: all_reduce of 1023 B (float, sum, out of "
                "place) has 1.000 GB/s",
                "--min-busbw asks for 9 GB/s from 1 MiB: nothing was tested, no such size was measured"}));
  const std::vector<LeastBusbw> harder = {{1.001e9, 0}, {2.001e9, 1024}};
  EXPECT_EQ(too_slow(results, harder).size(), 2u);
}

TEST(TooSlow, ASizeThatWasRoundedDownStaysInItsBand) {
  std::vector<Result> results = {all_reduce((64 << 20) - 4)};  // of 64M, for three ranks
  results[0].asked_size = 64 << 20;
  results[0].busbw = 1e9;
  EXPECT_TRUE(too_slow(results, std::vector<LeastBusbw>{{1e9, 64 << 20}}).empty());
  EXPECT_EQ(too_slow(results, std::vector<LeastBusbw>{{2e9, 64 << 20}}).size(), 1u);
}

TEST(TooSlow, OneRankHasNothingToCompare) {
  const std::vector<Result> results = {of_one_rank()};
  const std::vector<LeastBusbw> bands = {{1e9, 0}};
  EXPECT_EQ(
      too_slow(results, bands),
      std::vector<std::string>{"--min-busbw asks for 1 GB/s from 0 B: nothing was tested, it has no bus bandwidth"});
}

TEST(TooSlow, WhatIsNotANumberIsTooSlow) {
  std::vector<Result> results = {all_reduce()};
  results[0].busbw = std::nan("");
  const std::vector<LeastBusbw> bands = {{1e9, 0}};
  EXPECT_EQ(too_slow(results, bands).size(), 1u);
}

}  // namespace results_test
