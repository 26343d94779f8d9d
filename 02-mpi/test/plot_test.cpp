#include "benchmark/plot.hpp"

#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <multinode/check.hpp>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace plot_test {

using namespace perf;

Result result_of(std::size_t size, bool in_place = false, const std::string& type = "float") {
  Result result;
  result.collective = "all_reduce";
  result.ranks = 4;
  result.size = size;
  result.type = type;
  result.redop = "sum";
  result.in_place = in_place;
  result.median = 5e-6 + static_cast<double>(size) / 1e9;
  result.algbw = static_cast<double>(size) / result.median;
  result.busbw = 1.5 * *result.algbw;
  return result;
}

std::vector<Result> sweep() {
  std::vector<Result> results;
  for (std::size_t size = 8; size <= 64 << 20; size *= 2)
    for (const bool in_place : {false, true}) results.push_back(result_of(size, in_place));
  return results;
}

// What a parser of XML sees; it refuses what is not well-formed.
constexpr const char* reader = R"(
import json, sys, xml.etree.ElementTree as tree
root = tree.parse(sys.argv[1]).getroot()
name = lambda kind: '{http://www.w3.org/2000/svg}' + kind
points = [g for g in root.iter(name('g')) if g.get('class') == 'point']
print(json.dumps({
  'root': root.tag, 'title': root.find(name('title')).text,
  'size': [float(root.get('width')), float(root.get('height'))],
  'background': root.find(name('rect')).get('fill'),
  'texts': [text.text for text in root.iter(name('text'))],
  'hints': [g.find(name('title')).text for g in points],
  'points': [[float(n) for n in g.find(name('path')).get('transform')[len('translate('):-1].split()] for g in points],
  'lines': [len(line.get('points').split()) for line in root.iter(name('polyline'))]}))
)";

nlohmann::json draw(const std::string& title, std::span<const Result> results) {
  const multinode::testing::TemporaryFolder folder;
  const std::string path = folder / "plot.svg";
  write_plot(path, title, results);
  const auto read = multinode::testing::run({"python3", "-c", reader, path});
  if (read.status != 0) throw std::runtime_error("not well-formed: " + read.err);
  return nlohmann::json::parse(read.out);
}

bool contains(const nlohmann::json& texts, const std::string& text) {
  return std::find(texts.begin(), texts.end(), text) != texts.end();
}

void expect_points_inside(const nlohmann::json& picture) {
  for (const auto& point : picture["points"]) {
    ASSERT_EQ(point.size(), 2u);
    EXPECT_GE(point[0], 80.0);
    EXPECT_LE(point[0], 740.0);
    const double y = point[1];
    EXPECT_TRUE((y >= 79.99 && y <= 320.01) || (y >= 409.99 && y <= 650.01)) << y;
  }
}

TEST(Plot, HasAPointForEachResultInEachPanel) {
  const auto results = sweep();
  const auto picture = draw("all_reduce over mpi, 4 ranks", results);
  EXPECT_EQ(picture["root"], "{http://www.w3.org/2000/svg}svg");
  EXPECT_EQ(picture["title"], "all_reduce over mpi, 4 ranks");
  EXPECT_EQ(picture["background"], "#ffffff");
  EXPECT_EQ(picture["points"].size(), 2 * results.size());
  EXPECT_EQ(picture["lines"], (std::vector<int>{24, 24, 24, 24}));
  for (const char* text :
       {"Bus bandwidth (GB/s)", "Median time of a call (logarithmic)", "Size (logarithmic)", "float sum, out of place",
        "float sum, in place", "8", "512", "KiB", "MiB", "10 µs", "10 ms"})
    EXPECT_TRUE(contains(picture["texts"], text)) << text;
  expect_points_inside(picture);
}

TEST(Plot, PointsStandAtTheirValues) {
  std::vector<Result> results = {result_of(1024), result_of(4096), result_of(16384)};
  results[0].busbw = 1e9;
  results[1].busbw = 2e9;
  results[2].busbw = 4e9;
  const double times[] = {1e-6, 10e-6, 100e-6};
  for (std::size_t i = 0; i < 3; ++i) results[i].median = times[i];
  const auto picture = draw("x", results);
  const auto& points = picture["points"];
  ASSERT_EQ(points.size(), 6u);
  const auto step = [&](std::size_t from, std::size_t to, std::size_t axis) {
    return points[to][axis].get<double>() - points[from][axis].get<double>();
  };
  EXPECT_NEAR(step(0, 1, 0), step(1, 2, 0), 0.01);      // sizes: equal ratios, equal steps
  EXPECT_NEAR(2 * step(0, 1, 1), step(1, 2, 1), 0.01);  // bandwidth: linear, upwards
  EXPECT_LT(step(0, 1, 1), -10);
  EXPECT_NEAR(step(3, 4, 1), step(4, 5, 1), 0.01);  // time: logarithmic
  EXPECT_LT(step(3, 4, 1), -10);
  EXPECT_EQ(picture["hints"][1], "float sum, out of place, 4 KiB: 2.000 GB/s");
  EXPECT_EQ(picture["hints"][4], "float sum, out of place, 4 KiB: 10.00 µs");
}

TEST(Plot, TextIsEscaped) {
  std::vector<Result> results = {result_of(8)};
  results[0].type = "<\"&'>";
  const auto picture = draw("a < b && \"c\" ]]> \x01", results);
  EXPECT_EQ(picture["title"], "a < b && \"c\" ]]>  ");
  EXPECT_TRUE(contains(picture["texts"], "<\"&'> sum, out of place"));
  EXPECT_EQ(picture["hints"].size(), 2u);
}

TEST(Plot, OneRankHasNoBandwidth) {
  std::vector<Result> results = {result_of(32 << 20), result_of(32 << 20, true)};
  for (Result& result : results) result.busbw.reset();
  const auto picture = draw("x", results);
  EXPECT_EQ(picture["points"].size(), 2u);  // the times
  EXPECT_TRUE(contains(picture["texts"], "Bus bandwidth: n/a, of one rank there is none"));
  expect_points_inside(picture);
}

TEST(Plot, CyclesArePointsOfOneLine) {
  std::vector<Result> results = {result_of(8), result_of(16), result_of(8), result_of(16)};
  results[2].cycle = results[3].cycle = 1;
  const auto picture = draw("x", results);
  EXPECT_EQ(picture["points"].size(), 8u);
  EXPECT_EQ(picture["lines"], (std::vector<int>{2, 2}));
}

TEST(Plot, LegendOfManyLinesMakesThePictureHigher) {
  std::vector<Result> results;
  for (int type = 0; type < 50; ++type) results.push_back(result_of(1024, false, "type" + std::to_string(type)));
  const auto picture = draw("x", results);
  EXPECT_EQ(picture["points"].size(), 100u);
  EXPECT_TRUE(contains(picture["texts"], "type49 sum, out of place"));
  EXPECT_GE(picture["size"][1], 80 + 20 * 50);
}

TEST(Plot, OddValuesStayInside) {
  std::vector<Result> results = {result_of(0), result_of(3), result_of(std::numeric_limits<std::size_t>::max() / 2)};
  results[0].median = 0;
  results[0].busbw = 0;
  results[1].median = 2e-9;
  results[2].median = 4e5;
  results[2].busbw = 123456e9;
  expect_points_inside(draw("x", results));
  expect_points_inside(draw("x", std::vector{result_of(3'000'000)}));
  EXPECT_TRUE(contains(draw("x", std::vector{result_of(3 << 20)})["texts"], "3"));
}

TEST(Plot, NoResultsAreAPictureToo) {
  const auto picture = draw("x", {});
  EXPECT_EQ(picture["points"].size(), 0u);
  EXPECT_TRUE(contains(picture["texts"], "no results"));
}

TEST(Plot, NamesTheFileThatCannotBeWritten) {
  const auto message = [](const std::string& path) -> std::string {
    try {
      write_plot(path, "x", sweep());
    } catch (const multinode::UsageError& error) {
      return std::string("usage: ") + error.what();
    } catch (const std::runtime_error& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(message("/nowhere/x.svg"), "usage: --plot: cannot write /nowhere/x.svg: No such file or directory");
  EXPECT_EQ(message("/dev/full"), "cannot write /dev/full: No space left on device");
}

}  // namespace plot_test
