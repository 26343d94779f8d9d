// who_waits: what --timeline draws and --time adds up, of times that are made up.
#include <packing.hpp>
#include <timeline.hpp>

#include <multinode/base/files.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <boost/property_tree/xml_parser.hpp>
#include <nlohmann/json.hpp>

#include <array>
#include <cstring>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>

namespace who_waits_test {

using namespace multinode::testing;
using namespace who_waits;

constexpr std::int64_t ms = 1'000'000;

// Ranks that call MPI_Allreduce `count` times, every 100 ms: when each arrives and leaves, and what it did before, in
// ms. Ranks 2 and 3 are on another node, whose clock is 7 s ahead.
std::vector<RankTimes> sums(const std::vector<std::array<std::int64_t, 3>>& arrives_leaves_own, int count = 10) {
  std::vector<RankTimes> ranks;
  const auto times = std::make_unique<Times>();
  times->places[5].kind = Kind::MPI_Allreduce;
  times->places[5].bytes = 4 << 20;
  for (const auto& [arrives, leaves, outside] : arrives_leaves_own) {
    times->places[5].calls = static_cast<std::uint64_t>(count);
    times->places[5].nanoseconds = static_cast<std::uint64_t>(count * (leaves - arrives) * ms);
    const auto rank = static_cast<int>(ranks.size());
    const bool other = rank == 2 || rank == 3;
    const std::int64_t ahead = other ? 7000 * ms : 0, error = other ? ms : 0;
    times->used = 0;
    for (int i = 0; i < count; ++i)
      times->meetings[times->used++] = {.number = static_cast<std::uint64_t>(1000 + i),
                                        .enter = ahead + (100 * i + arrives) * ms,
                                        .leave = ahead + (100 * i + leaves) * ms,
                                        .outside = outside * ms,
                                        .place = 5,
                                        .gives = true,
                                        .waits = true};
    RankTimes one = unpacked<RankTimes>(packed(times_of(*times, static_cast<int>(arrives_leaves_own.size()))));
    one.rank = rank;
    one.first = {ahead, -ahead, error};
    one.last = {ahead + 100 * count * ms, -ahead, error};
    one.until = ahead + 100 * count * ms;
    ranks.push_back(one);
  }
  return ranks;
}
std::string where(const Place&) { return "sum.cpp:7"; }

TEST(WhoWaitsTime, OnlyARankThatWorkedLongerIsCalledLate) {
  const TimeReport late = report(sums({{10, 73, 10}, {10, 73, 10}, {10, 73, 10}, {70, 73, 70}}), where);
  EXPECT_EQ(late.late, std::vector<int>{3});
  EXPECT_SAYS(late.lines[0],
              "MPI_Allreduce 4 MiB, sum.cpp:7: 40 calls on 4 ranks, 48 ms each, of which 45 ms waiting for rank 3 and "
              "3 ms for the data");
  EXPECT_SAYS(late.lines[1], "45 % of the time, ranks wait because rank 3 works or sleeps longer");
  EXPECT_EQ(late.lines.back(), "the nodes' clocks are known to +- 1 ms");
  // Ranks 2 and 3 arrive late, because the network delayed them before.
  EXPECT_TRUE(report(sums({{10, 95, 10}, {10, 95, 10}, {50, 95, 10}, {50, 95, 10}}), where).late.empty());
  EXPECT_TRUE(report(sums({{10, 75, 10}, {10, 75, 10}, {10, 75, 10}, {12, 75, 10}}), where).late.empty());
}

TEST(WhoWaitsTime, ManyMeetingsAreThinnedEqually) {
  const auto times = std::make_unique<Times>();
  times->places[0].kind = Kind::MPI_Barrier;
  for (std::uint64_t i = 0; i < times->most; ++i) times->meetings[times->used++] = {.number = i};
  const RankTimes one = times_of(*times, 1000);
  EXPECT_EQ(one.sample.shift, 5u);
  EXPECT_EQ(one.meetings.size(), times->most / 32);
  EXPECT_EQ(one.meetings[1].number, 32u);
}

// What an SVG shows. Throws if it is no well-formed XML.
struct Shown {
  explicit Shown(const std::string& svg) {
    std::istringstream in(svg);
    boost::property_tree::ptree tree;
    boost::property_tree::read_xml(in, tree);
    collect(tree);
  }
  void collect(const boost::property_tree::ptree& tree) {
    for (const auto& [name, child] : tree) {
      if (name == "title") titles.push_back(child.data());
      if (name == "rect" && child.get("<xmlattr>.y", -1) >= 0)
        bars[child.get("<xmlattr>.class", "")].push_back(
            {child.get("<xmlattr>.x", 0), child.get("<xmlattr>.y", 0), child.get("<xmlattr>.width", 0)});
      collect(child);
    }
  }
  std::vector<std::string> titles;
  std::map<std::string, std::vector<std::array<int, 3>>> bars;  // by class: x, y, width; the whole time is 9600 wide
};
Shown shown(const std::vector<RankTimes>& ranks) { return Shown(svg_of(timeline_of(ranks), {}, {}, where)); }

TEST(WhoWaitsTimeline, ABarIsDarkWhileItsRankWaitsForALateOne) {
  Shown late = shown(sums({{10, 73, 10}, {70, 73, 70}}, 1));  // the picture begins at 10 ms, and ends at 100
  ASSERT_EQ(late.bars["bd"].size(), 1u);
  EXPECT_EQ(late.bars["bd"][0], (std::array{0, 0, 9600 * 60 / 90}));
  EXPECT_EQ(late.bars["bl"].size(), 2u);
  EXPECT_SAYS(late.titles.at(0), "rank 0: MPI_Allreduce, 4 MiB, sum.cpp:7: 63 ms, of which 60 ms waiting for rank 1");
  const auto ranks = sums({{10, 73, 10}, {70, 73, 70}}, 1);
  const auto call = nlohmann::json::parse(trace_of(timeline_of(ranks), {}, {}, where)).at("traceEvents").at(2);
  EXPECT_EQ(call.at("ts"), 0);
  EXPECT_DOUBLE_EQ(call.at("dur").get<double>(), 63'000);
  EXPECT_DOUBLE_EQ(call.at("args").at("late_us").get<double>(), 60'000);
  EXPECT_EQ(call.at("args").at("waits_for"), 1);
  Shown together = shown(sums({{70, 73, 70}, {70, 73, 70}}, 1));
  EXPECT_TRUE(together.bars["bd"].empty());
  EXPECT_EQ(together.bars["bl"].size(), 2u);
}

TEST(WhoWaitsTimeline, AMessageIsAnArrowFromItsSendToItsReceive) {
  auto ranks = sums({{10, 20, 10}, {50, 60, 50}}, 1);
  for (RankTimes& one : ranks) one.meetings[0].peer = 1 - one.rank, one.meetings[0].tag = 7;
  EXPECT_TRUE(timeline_of(ranks).messages.empty());  // no rank sends
  ranks[0].meetings[0].sends = true;
  const Timeline timeline = timeline_of(ranks);
  ASSERT_EQ(timeline.messages.size(), 1u);
  EXPECT_EQ(timeline.calls[timeline.messages[0].from].rank->rank, 0);
  EXPECT_SAYS(svg_of(timeline, {}, {}, where), R"(<line x1="0%" y1="36" x2="55.56%" y2="42"/>)");
  const std::string trace = trace_of(timeline, {}, {}, where);
  EXPECT_SAYS(trace, R"({"cat":"message","id":0,"name":"message","ph":"s","pid":0,"tid":0,"ts":0.0})");
  EXPECT_THROW(svg_of(timeline, Moment{3}, Moment{2}, where), std::runtime_error);
  for (const Moment& half : {Moment{0.045}, Moment{-0.045}, Moment{50, true}})
    EXPECT_EQ(Shown(svg_of(timeline, half, {}, where)).titles.size(), 1u) << half.value;
}

TEST(WhoWaitsTimeline, SixtyFourRanksWithManyCallsAreStillTrue) {
  std::vector<std::array<std::int64_t, 3>> each(64, {10, 73, 10});
  each[37] = {70, 73, 70};
  const std::string svg = svg_of(timeline_of(sums(each, 1000)), {}, {}, where);
  EXPECT_LE(svg.size(), most_bytes);
  Shown all(svg);
  EXPECT_LE(all.bars["lane"].size(), most_rows);
  long calls = 0;
  std::smatch found;
  for (const std::string& title : all.titles) {
    ASSERT_TRUE(std::regex_search(title, found, std::regex(R"(^(\d+) calls .*: (\d+) % .*late rank, (\d+) %)")))
        << title;
    calls += std::stol(found[1]);
    // The late rank is in its own row, and nothing there is dark.
    EXPECT_TRUE(found[2] == "60" || found[2] == "0") << title;
    EXPECT_EQ(found[3], "3") << title;
  }
  EXPECT_EQ(calls, 64'000);
  EXPECT_SAYS(svg, ">37</text>");
}

TEST(WhoWaitsTimeline, AGapHasTheNameOfTheRegionThatBeganLast) {
  auto ranks = sums({{10, 73, 10}, {70, 73, 70}}, 1);
  const auto region = [&](std::uint16_t place, const char* name, std::int64_t enter, std::int64_t leave) {
    Place& named = ranks[1].places[place];
    named.kind = Kind::region;
    std::strcpy(named.object.data(), name);
    return Meeting{.number = 8, .enter = enter * ms, .leave = leave * ms, .place = place};
  };
  ranks[1].meetings.push_back(region(6, "out & in", 20, 60));
  ranks[1].meetings.push_back(region(7, "overlaps", 30, 66));
  ranks[1].open.push_back(region(8, "never ends", 80, 0));
  const Timeline timeline = timeline_of(ranks);
  const std::string svg = svg_of(timeline, {}, {}, where);
  Shown all(svg);
  EXPECT_EQ(all.bars["g0"], (std::vector{std::array{1067, 42, 4266}}));
  EXPECT_EQ(all.bars["g1"], (std::vector{std::array{2133, 42, 3840}}));
  EXPECT_EQ(all.bars["g2"], (std::vector{std::array{7467, 42, 2133}}));
  EXPECT_LT(svg.find(">out"), svg.find(">overlaps"));  // which lies on it, and leaves it this room for its name:
  EXPECT_SAYS(svg, R"(<svg x="11.11%" y="42" width="11.11%")");
  EXPECT_SAYS(svg, "rank 1: out &amp; in: 40 ms, from 10.00 ms");
  EXPECT_SAYS(trace_of(timeline, {}, {}, where), R"("name":"overlaps","ph":"X","pid":1)");
  Shown part(svg_of(timeline, Moment{0.065}, {}, where));  // it has the same colours
  EXPECT_EQ(part.bars["g2"].size(), 1u);
  EXPECT_TRUE(part.bars["g0"].empty());
  ranks[1].open.back().thread = 1;  // which has a lane of its own, also without a call
  Shown lanes(svg_of(timeline_of(ranks), {}, {}, where));
  EXPECT_EQ(lanes.bars["g2"], (std::vector{std::array{7467, 60, 2133}}));
  EXPECT_EQ(lanes.bars["g0"], (std::vector{std::array{1067, 42, 4266}}));
  EXPECT_EQ(report(ranks, where).lines.size(), report(sums({{10, 73, 10}, {70, 73, 70}}, 1), where).lines.size());
  // Programs that know little of CSS show the same colours.
  EXPECT_FALSE(std::regex_search(svg, std::regex(R"(var\(|class="\w+" (?!fill=|stroke=|display=))")));
}

TEST(WhoWaitsTime, LongCallsAreKept) {
  Sample sample;
  std::vector<Meeting> all(1000);
  for (std::size_t i = 0; i < all.size(); ++i)
    all[i] = {.number = 2 * i + 1, .level = static_cast<std::uint8_t>(i < 200 ? 30 : 9)};
  for (int i = 0; i < 3; ++i) sample.thin(all);
  EXPECT_EQ(std::ranges::count_if(all, [&](const Meeting& one) { return sample.has(one); }), 200);
}

#ifdef PATH_waiting_programs
// The picture and --time show what the program's own log says, also of many more calls than are kept.
class WhoWaitsTrue : public testing::TestWithParam<int> {};
TEST_P(WhoWaitsTrue, PictureAndTimeAreTheProgramsOwnLog) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "trace.json").string();
  const Result result = run(under_mpirun(4, {PATH_who_waits, "--timeline", file, "--time", "--", PATH_waiting_programs,
                                             "steps", std::to_string(GetParam())}),
                            {{"HOME", folder.path().string()}});
  ASSERT_EQ(result.status, 0) << result.err;
  const auto trace = nlohmann::json::parse(std::ifstream(file));
  std::map<int, int> waits;
  double all = 0, start = 0, ms = 0;
  std::istringstream log(result.out);
  int rank = 0;
  for (std::string call; log >> rank >> call >> start >> ms;) {
    if (call == "all") {
      all += ms;
      continue;
    }
    ++waits[rank];
    EXPECT_TRUE(std::ranges::any_of(trace.at("traceEvents"),
                                    [&](const nlohmann::json& event) {
                                      return event.at("pid") == rank && event.at("name") == call &&
                                             std::abs(event.at("ts").get<double>() / 1e3 - start) < 50 &&
                                             std::abs(event.at("dur").get<double>() / 1e3 - ms) < 40;
                                    }))
        << rank << ' ' << call << " at " << start << " ms for " << ms << " ms is not in the picture";
  }
  std::map<int, int> drawn;
  for (const nlohmann::json& event : trace.at("traceEvents"))
    if (event.at("ph") == "X" && event["args"].value("late_us", 0.0) >= 50e3 && event["args"].at("waits_for") == 2)
      ++drawn[event.at("pid").get<int>()];
  for (const int victim : {0, 1, 3}) EXPECT_GE(std::min(waits[victim], drawn[victim]), 16) << "rank " << victim;
  const double naps = 3 * 16 * 100.0;  // ms that ranks wait for rank 2; on a busy machine they wait for others, too
  if (const double own = 100 * naps / all; own > 20) {
    std::smatch found;
    const std::regex line(R"((\d+) % of the time, ranks wait because (.*) work)");
    ASSERT_TRUE(std::regex_search(result.err, found, line)) << result.err;
    EXPECT_GT(std::stod(found[1]), own - 10) << result.err << result.out;
    EXPECT_SAYS(found[2].str(), "rank 2");
  }
}
INSTANTIATE_TEST_SUITE_P(Calls, WhoWaitsTrue, testing::Values(5'000));
INSTANTIATE_TEST_SUITE_P(ManyCalls, WhoWaitsTrue, testing::Values(50'000, 500'000));

TEST(WhoWaitsTimeline, RegionsAreNamedByTheProgramAndChangeNothing) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "picture.svg").string();
#ifdef WITH_NVTX
  const std::string times = "1*", range = "a range";
#else
  const std::string times = "0*", range = "region 1";
#endif
  const std::string statements =
      "* region 1 1; * nap 20; * region 1 2; * region -1 1; * nap 20; * region -1 2; * no_region 1; * no_region -1; "
      "* region -1 7; * 65*region 1 4; * 66*region -1 4; * " +
      times + "push; * nap 20; * " + times + "pop; * region 1 3; * nap 20";
  const Result alone = run(under_mpirun(2, {PATH_waiting_programs, statements}));
  const Result drawn =
      run(under_mpirun(2, {PATH_who_waits, "--timeline", file, "--time", "--", PATH_waiting_programs, statements}));
  EXPECT_EQ(drawn.status, 0);
  EXPECT_EQ(drawn.out, alone.out);
  const std::string svg = multinode::read_text(file).value_or("");
  for (const char* const region : {"region 1", "region 2", "region 3", range.c_str()})
    EXPECT_SAYS(svg, fmt::format("<title>rank 1: {}: ", region));
  EXPECT_SAYS(svg, "Regions that had not ended: 2.");
  EXPECT_SAYS(svg, "Regions begun or ended without the other: 8.");
}

TEST(WhoWaitsTimeline, AProgramIsDrawnWhenItEndsAndWhenItHangs) {
  const TemporaryFolder folder;
  const std::string file = (folder.path() / "picture.svg").string();
  const auto picture = [&] { return multinode::read_text(file).value_or(""); };
  const auto command = [&](const char* statements) {
    return under_mpirun(2,
                        {PATH_who_waits, "--after", "2", "--timeline", file, "--", PATH_waiting_programs, statements});
  };
  const Result result = run(command("1 nap 300; * all_reduce 16; * duplicate; 1 nap 100; * barrier 1"));
  EXPECT_EQ(result.status, 0);
  EXPECT_SAYS(result.err, "who_waits: the timeline is in " + file);
  Shown ends(picture());
  EXPECT_FALSE(ends.bars["bd"].empty());
  EXPECT_TRUE(ends.bars["r"].empty());
  EXPECT_TRUE(std::ranges::any_of(ends.titles, [](const std::string& title) {
    return std::regex_search(
        title, std::regex(R"(rank 0: MPI_Allreduce, 64 B in MPI_COMM_WORLD, waiting_programs.*waiting for rank 1)"));
  })) << picture();
  EXPECT_SAYS(picture(), "rank 0: MPI_Barrier in the communicator of ranks 0-1, waiting_programs");
  Process process(command("1 receive 0 7; * barrier"));
  ASSERT_TRUE(process.wait_for("the timeline is in"));
  process.signal(SIGTERM);
  process.wait();
  const auto red = Shown(picture()).bars["r"];  // up to the edge
  ASSERT_EQ(red.size(), 2u) << picture();
  EXPECT_EQ(red[0][0] + red[0][2], 9600);
  EXPECT_SAYS(picture(), "still waiting at the end for rank 1");  // in the barrier, which has no peer
}
#endif

}  // namespace who_waits_test
