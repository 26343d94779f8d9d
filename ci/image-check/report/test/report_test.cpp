#include "report.hpp"
#include "page_style.hpp"
#include "xml.hpp"

#include <multinode/options.hpp>
#include <multinode/program_options.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <filesystem>
#include <random>
#include <regex>
#include <set>
#include <sstream>

namespace report_test {

using namespace image_check;
using multinode::testing::occurrences;
using multinode::testing::TemporaryFolder;
using multinode::testing::text_of;

CheckResult check(const std::string& name, Status status, Action action = Action::none,
                  std::vector<Finding> findings = {}) {
  CheckResult result;
  result.check = name;
  result.title = "what " + name + " shows";
  result.status = status;
  result.action = action;
  result.seconds = 1.5;
  result.nodes = {"node0", "node1"};
  result.command = "mpirun -n 2 ./" + name + " --size 4M";
  result.findings = std::move(findings);
  result.log = "logs/" + name + ".log";
  return result;
}

Sample sample(const std::string& metric, double value, double band = -1, int launch = 0, const std::string& node = "",
              const std::string& better = "more") {
  return {"a check", metric, band, "GB/s", better, value, launch, node};
}

Results right() {
  Results results;
  results.head = {"gate",
                  "image-check run --suite gate",
                  "2026-11-21T20:15:07Z",
                  300,
                  "mpirun",
                  {"node0", "node1"},
                  2,
                  {{"cpu", "a processor"}},
                  {{"kernel", "6.1.0"}},
                  {{"UCX_TLS", "all"}}};
  results.checks = {check("wiring", Status::pass), check("pi", Status::pass)};
  results.summary.passed = 2;
  results.summary.seconds = 12;
  results.complete = true;
  return results;
}

Results wrong() {
  Results results = right();
  results.checks.push_back(check("odd", Status::fail, Action::look, {{"output", "an odd line", ""}}));
  results.checks.push_back(check("limits", Status::fail, Action::reboot, {{"limit", "64 KiB locked", "node1"}}));
  results.checks.push_back(check("bits", Status::fail, Action::replace_node, {{"data", "1 word differs", "node0"}}));
  results.checks.push_back(
      check("silent", Status::timeout, Action::drain, {{"deadline", "ended after 60 s", "node1"}}));
  results.checks.push_back(check("shaky", Status::flaky, Action::look, {{"data", "right when run again", ""}}));
  auto skipped = check("gpu", Status::skip);
  skipped.reason = "no GPU";
  results.checks.push_back(skipped);
  auto not_run = check("late", Status::not_run);
  not_run.reason = "the budget is used up";
  results.checks.push_back(not_run);
  results.summary = {2, 4, 1, 1, 1, 298, 1};
  return results;
}

class Parsed {
 public:
  explicit Parsed(const std::string& text) : result(document.load_string(text.c_str(), pugi::parse_full)) {}
  std::vector<std::string> texts(const std::string& path) const {
    std::vector<std::string> all;
    for (const auto& found : document.select_nodes(path.c_str())) all.push_back(text_of(found.node()));
    return all;
  }
  std::string text(const std::string& path) const {
    const auto all = texts(path);
    return all.empty() ? "(no " + path + ")" : all.front();
  }
  std::size_t count(const std::string& path) const { return document.select_nodes(path.c_str()).size(); }

  pugi::xml_document document;
  pugi::xml_parse_result result;

 private:
  static std::string text_of(pugi::xml_node node) {
    if (node.type() == pugi::node_pcdata) return node.value();
    std::string text;
    for (const auto& child : node.children()) text += text_of(child);
    return text;
  }
};

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(Page, SaysTheVerdictFirst) {
  const auto verdict = [](const Results& results) {
    return Parsed(html_page(results, nullptr)).text("/html/body/*[1]/h1");
  };
  EXPECT_EQ(verdict(right()), "✓ PASS2 passed.");
  EXPECT_EQ(verdict(wrong()), "✗ FAIL4 failed, 1 flaky, 1 not run, 2 passed, 1 skipped.");
  Results results = right();
  results.complete = false;
  EXPECT_EQ(verdict(results), "? INCOMPLETEthe run did not come to its end; 2 passed.");
  results = right();
  results.checks[1].status = Status::not_run;
  results.summary = {1, 0, 0, 0, 1, 5, 3};
  EXPECT_EQ(verdict(results), "? COULD NOT TEST1 not run, 1 passed.");
}

TEST(Page, IsNoPassThatTheResultsDoNotBear) {
  const auto verdict = [](const Results& results) {
    return Parsed(html_page(results, nullptr)).text("/html/body/*[1]/h1");
  };
  for (const Status status : {Status::fail, Status::timeout, Status::flaky, Status::not_run}) {
    Results results = right();
    results.checks.push_back(check("more", status));
    EXPECT_TRUE(contains(verdict(results), "FAIL")) << name_of(status);
  }
  Results results = right();
  results.summary.passed = 3;
  EXPECT_TRUE(contains(verdict(results), "FAIL"));
  results = right();
  results.checks.clear();
  results.summary.passed = 0;
  EXPECT_TRUE(contains(verdict(results), "nothing was checked"));
  results = right();
  results.comparisons = {{"rate", -1, "GB/s", "more", "", {2}, {1}, {}, {}, 0.1, "worse"}};
  EXPECT_TRUE(contains(verdict(results), "FAIL"));
}

TEST(Page, PutsTheMostSevereFirst) {
  const Parsed page(html_page(wrong(), nullptr));
  const auto titles = page.texts("//section[@id='failures']/article/h3");
  EXPECT_EQ(titles, (std::vector<std::string>{"Replace the node node0: bits", "Drain the node node1: silent",
                                              "Reboot the node node1: limits", "Look: odd", "Look: shaky"}));
  EXPECT_EQ(page.text("//header/p"),
            "To do: replace the node node0, drain the node node1, reboot the node node1, look at odd, look at shaky.");
  const auto commands = page.texts("//section[@id='failures']//code[@class='command']");
  EXPECT_EQ(commands.size(), 5u);
  EXPECT_EQ(commands.front(), "mpirun -n 2 ./bits --size 4M");
  EXPECT_EQ(page.count("//section[@id='failures']//a[@href='./logs/bits.log']"), 1u);
  EXPECT_EQ(page.text("//section[@id='failures']/article[1]/ul"), "data, node0: 1 word differs");
}

TEST(Page, HoldsWhatAnyProgramPrints) {
  const std::string evil = "<script>alert(1)</script> & \"quoted\" 'it' \x1b[31m \x01 \xff\xfe \xEF\xBF\xBF ]]> -->";
  Results results = wrong();
  auto& failed = results.checks[2];
  failed.check = failed.title = failed.command = failed.log = failed.reason = evil;
  failed.nodes = {evil};
  failed.findings = {{evil, evil + std::string(1, '\0') + std::string(100'000, 'x'), evil}};
  results.head = {evil, evil, evil, 0, evil, {evil}, 1, {{evil, evil}}, {{evil, evil}}, {{evil, evil}}};
  results.samples = {sample(evil, 1, -1, 0, evil), sample(evil, 2, 8), sample(evil, 2, 64), sample(evil, 2, 512),
                     sample(evil, 2, 64, 0, evil + " - " + evil)};
  results.differences = {{evil, evil, evil, evil}};
  results.comparisons = {{evil, 8, evil, evil, evil, {1}, {2}, {}, {}, 0.1, evil}};
  for (const std::string& text : {html_page(results, &results), junit_xml(results)}) {
    const Parsed parsed(text);
    ASSERT_TRUE(parsed.result) << parsed.result.description();
    EXPECT_EQ(parsed.count("//script"), 0u);
    for (const char c : text) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t');
    EXPECT_TRUE(contains(text, "␛[31m ␁ "));
    EXPECT_TRUE(contains(text, "&lt;script&gt;alert(1)&lt;/script&gt; &amp; "));
  }
  const Parsed page(html_page(results, nullptr));
  const std::string shown = page.text("//section[@id='failures']/article[@class='failure'][last()]/ul/li");
  EXPECT_LT(shown.size(), 3000u);
  EXPECT_TRUE(contains(shown, " bytes more)"));
}

TEST(Page, NeedsNothingElse) {
  const std::string text = html_page(wrong(), nullptr);
  const Parsed page(text);
  ASSERT_TRUE(page.result) << page.result.description();
  EXPECT_EQ(text.rfind("<!DOCTYPE html>", 0), 0u);
  for (const char* path : {"//script", "//link", "//img", "//iframe", "//@src", "//@onclick", "//@style"})
    EXPECT_EQ(page.count(path), 0u) << path;
  for (const auto& found : page.document.select_nodes("//@href")) {
    const std::string address = found.attribute().value();
    EXPECT_TRUE(address.rfind("#", 0) == 0 || address.rfind("./", 0) == 0) << address;
  }
  EXPECT_EQ(page.count("//meta[@http-equiv='Content-Security-Policy'][starts-with(@content, \"default-src 'none'\")]"),
            1u);
  const std::string style = page_style;
  EXPECT_EQ(page.text("//style"), style);
  EXPECT_EQ(style.find_first_of("<>&"), std::string::npos);  // HTML would read their escapes as they are
  EXPECT_FALSE(contains(style, "url("));
  EXPECT_FALSE(contains(style, "@import"));
  EXPECT_EQ(page.count("//section[not(h2)]"), 0u);
  EXPECT_EQ(page.count("//svg[not(title)]"), 0u);
  EXPECT_EQ(page.count("//table[not(thead/tr/th[@scope='col'])]"), 0u);
}

TEST(Page, GivesMediansAndRanges) {
  Results results = right();
  results.samples = {sample("rate", 1, 8, 0),    sample("rate", 3, 8, 0),   sample("rate", 2, 8, 0),
                     sample("rate", 10, 8, 1),   sample("rate", 5, 64),     sample("rate", 1234567, 512),
                     sample("one", 0.25, -1, 0), sample("one", 0.75, -1, 1)};
  Results baseline = right();
  baseline.samples = {sample("rate", 8, 8), sample("rate", 5, 64), sample("one", 1)};
  const Parsed page(html_page(results, &baseline));
  // Of the launches 2 and 10, not of all four; the range is that of all.
  EXPECT_EQ(page.texts("//section[@id='curves']//tbody/tr[1]/*"),
            (std::vector<std::string>{"8 B", "6 (1 to 10, n = 4)", "8", "-25 %"}));
  EXPECT_EQ(page.texts("//section[@id='curves']//tbody/tr[2]/*"), (std::vector<std::string>{"64 B", "5", "5", "0 %"}));
  EXPECT_EQ(page.texts("//section[@id='curves']//tbody/tr[3]/*"),
            (std::vector<std::string>{"512 B", "1234567", "–", "–"}));
  EXPECT_EQ(page.texts("//section[@id='values']//tbody/tr/*"),
            (std::vector<std::string>{"one", "GB/s", "0.5 (0.25 to 0.75, n = 2)", "1", "-50 %"}));
}

struct Point {
  double x, y;
};
std::vector<Point> points(const Parsed& page, const std::string& figure, const char* shape, const char* x,
                          const char* y) {
  std::vector<Point> all;
  for (const auto& found : page.document.select_nodes((figure + "//" + shape).c_str()))
    all.push_back({found.node().attribute(x).as_double(), found.node().attribute(y).as_double()});
  return all;
}

TEST(Page, DrawsCurvesOnLogarithmicAxes) {
  Results results = right();
  for (int i = 0; i < 4; ++i) {
    const double band = 8 * std::pow(8, i), value = 3 * std::pow(10, i);
    for (const double factor : {0.5, 1.0, 2.0}) results.samples.push_back(sample("rate", factor * value, band));
  }
  const Parsed page(html_page(results, nullptr));
  const std::string figure = "//section[@id='curves']//figure";
  EXPECT_EQ(page.count(figure), 1u);
  const auto run = points(page, figure, "circle[@class='run point']", "cx", "cy");
  ASSERT_EQ(run.size(), 4u);
  for (std::size_t i = 1; i < 4; ++i) {
    EXPECT_NEAR(run[i].x - run[i - 1].x, (run[3].x - run[0].x) / 3, 0.2);
    EXPECT_NEAR(run[i].y - run[i - 1].y, (run[3].y - run[0].y) / 3, 0.2);
    EXPECT_GT(run[i].x, run[i - 1].x);
    EXPECT_LT(run[i].y, run[i - 1].y);  // more is up
  }
  // The shade: up to twice the median, and down to half of it.
  std::istringstream shade(
      page.document.select_node((figure + "//polygon[@class='run noise']/@points").c_str()).attribute().value());
  const double twice = (run[0].y - run[3].y) / 3 * std::log10(2.0);
  char comma = 0;
  for (int i = 0; i < 8; ++i) {
    Point corner{};
    ASSERT_TRUE(shade >> corner.x >> comma >> corner.y);
    const Point middle = run[static_cast<std::size_t>(i < 4 ? i : 7 - i)];
    EXPECT_NEAR(corner.x, middle.x, 0.2);
    EXPECT_NEAR(corner.y, middle.y + (i < 4 ? -twice : twice), 0.3);
  }
  EXPECT_EQ(page.count(figure + "//*[contains(@class, 'base')]"), 0u);
}

TEST(Page, DrawsZeroAndOddValues) {
  Results results = right();
  for (const double band : {0.0, 8.0, 64.0}) results.samples.push_back(sample("errors", 0, band));
  results.samples.push_back(sample("below", -3, 8));
  for (const double band : {16.0, 64.0}) results.samples.push_back(sample("below", 2, band));
  results.samples.push_back(sample("lost", std::nan(""), 8));
  const std::string text = html_page(results, &results);
  for (const char* wrong : {"nan", "inf"})
    EXPECT_FALSE(std::regex_search(text, std::regex(std::string("[^a-z]") + wrong + "[^a-z]"))) << wrong;
  const Parsed page(text);
  const auto run = points(page, "//section[@id='curves']//figure[1]", "circle[@class='run point']", "cx", "cy");
  ASSERT_EQ(run.size(), 3u);
  EXPECT_LT(run[0].x, run[1].x);  // 0 bytes, where a logarithm is none
}

Results compared() {
  Results results = right();
  results.head.suite = "compare";
  results.checks = {check("all_reduce, 64 B", Status::pass), check("memory, node1", Status::fail, Action::look)};
  results.facts = {{"node", "memory", "2 GiB", "node0"},
                   {"node", "memory", "1 GiB", "node1"},
                   {"node", "cores", "2", "node0"},
                   {"node", "cores", "2", "node1"}};
  results.differences = {{"version", "Open MPI", "4.1.4", "4.1.6"}, {"setting", "OMPI_MCA_btl", "", "^vader"}};
  for (const double band : {8.0, 64.0, 512.0, 4096.0}) {
    const bool bad = band == 512;
    results.comparisons.push_back({"all_reduce",
                                   band,
                                   "GB/s",
                                   "more",
                                   "",
                                   {band, 1.1 * band, 0.9 * band},
                                   {bad ? band / 2 : band},
                                   {},
                                   {},
                                   0.05,
                                   bad ? "worse" : "same"});
    if (bad) results.comparisons.back().again_a = {500}, results.comparisons.back().again_b = {250};
  }
  results.comparisons.push_back({"time", -1, "s", "less", "", {2}, {3}, {2}, {3}, 0.1, "worse"});
  results.comparisons.push_back({"speed", -1, "s", "less", "node1", {2}, {1}, {2}, {1}, 0.1, "better"});
  results.comparisons.push_back({"calm", 8, "s", "less", "", {2}, {2}, {}, {}, 0.1, "same"});
  results.summary.exit_status = 1;
  return results;
}

TEST(Page, ShowsWhatIsSuspect) {
  const Parsed page(html_page(compared(), nullptr));
  const auto said = page.texts("//header/p");
  EXPECT_EQ(said,
            (std::vector<std::string>{"To do: look at memory, node1.", "Worse: all_reduce (512 B -50 %); time (+50 %).",
                                      "What differs: Open MPI 4.1.4 → 4.1.6; OMPI_MCA_btl none → ^vader."}));
  const std::string suspects = "//section[@id='comparison']//article";
  EXPECT_EQ(page.texts(suspects + "//h3"),
            (std::vector<std::string>{"all_reduce, GB/s", "time, s", "speed, node1, s"}));
  EXPECT_EQ(
      page.texts(suspects + "[1]//tbody/tr/*"),
      (std::vector<std::string>{"512 B", "✗ worse", "512460.8 to 563.2", "256", "-50 %", "-4.9 %", "–", "500", "250"}));
  // The strip is on 512 B, and on no other band; the limit is 5 % below the baseline.
  const std::string figure = suspects + "[1]//figure";
  const auto base = points(page, figure, "rect[@class='base point']", "x", "y");
  ASSERT_EQ(base.size(), 4u);
  const auto strip = page.document.select_nodes((figure + "//rect[@class='marked']").c_str());
  ASSERT_EQ(strip.size(), 1u);
  const double from = strip[0].node().attribute("x").as_double(),
               to = from + strip[0].node().attribute("width").as_double();
  for (int i = 0; i < 4; ++i) {
    const double x = base[static_cast<std::size_t>(i)].x + 2.8;
    EXPECT_EQ(x > from && x < to, i == 2) << i;
  }
  EXPECT_EQ(page.text(figure + "//text[contains(@class, 'mark')]"), "512 B -50 %");
  const auto change = points(page, figure, "circle[@class='run point']", "cx", "cy");
  ASSERT_EQ(change.size(), 8u);  // on the curve, and in the change below it
  EXPECT_NEAR(change[4].y, change[5].y, 0.05);
  EXPECT_GT(change[6].y, change[5].y + 10);
  const auto limits = page.document.select_nodes((figure + "//polyline[@class='limit']").c_str());
  ASSERT_EQ(limits.size(), 2u);
  std::istringstream limit(limits[0].node().attribute("points").value());
  for (const Point& of_a : base) {
    Point corner{};
    char comma = 0;
    ASSERT_TRUE(limit >> corner.x >> comma >> corner.y);
    EXPECT_NEAR(corner.x, of_a.x + 2.8, 0.2);
    EXPECT_GT(corner.y, of_a.y + 2.8);  // less
  }
  const auto speed = points(page, suspects + "[3]//figure", "line[@class='limit']", "x1", "y1");
  ASSERT_EQ(speed.size(), 1u);
  EXPECT_GT(speed[0].x, points(page, suspects + "[3]//figure", "rect[@class='base point']", "x", "y").at(0).x + 2.8);
  EXPECT_EQ(page.texts("//section[@id='checks']//tbody//th"),
            (std::vector<std::string>{"memory, node1what memory, node1 shows"}));
  EXPECT_EQ(page.texts("//section[@id='with']//div[h3='What the nodes have']//tbody/tr/*"),
            (std::vector<std::string>{"cores", "2", "all 2", "memory", "1 GiB", "node1", "memory", "2 GiB", "node0"}));
  EXPECT_EQ(page.count("//section[@id='comparison']/details//tbody/tr"), 7u);
  EXPECT_EQ(page.texts("//section[@id='comparison']/div[1]//tbody/tr[2]/*"),
            (std::vector<std::string>{"setting", "OMPI_MCA_btl", "–", "^vader"}));
}

TEST(Page, NamesTheSizesThatHaveRoomAndShadesLessWhatIsNotWorse) {
  Results results = compared();
  results.comparisons.clear();
  for (const auto& [band, verdict] : std::map<double, std::string>{
           {8, "same"}, {1024, "flaky"}, {1280, "worse"}, {1 << 20, "same"}, {1 << 26, "same"}, {1 << 28, "better"}})
    results.comparisons.push_back(
        {"rate", band, "GB/s", "more", "", {4}, {verdict == "worse" ? 2.0 : 5.0}, {}, {}, 0.05, verdict});
  const Parsed page(html_page(results, nullptr));
  const std::string figure = "//article[@class='suspect']//figure";
  EXPECT_EQ(page.count(figure + "//rect[@class='marked']"), 1u);
  EXPECT_EQ(page.count(figure + "//rect[@class='marked doubt']"), 2u);
  EXPECT_TRUE(contains(page_style, ".drawing .marked.doubt {"));
  // 1 and 1.25 KiB are so near that the axis names the first, and the strips that which is worse.
  EXPECT_EQ(page.texts(figure + "//text[@class='mark middle']"), std::vector<std::string>{"1.25 KiB -50 %"});
  EXPECT_EQ(page.texts(figure + "//text[@class='mark doubt middle']"), std::vector<std::string>{"256 MiB +25 %"});
  EXPECT_EQ(page.texts(figure + "//text[@class='tick middle']"),
            (std::vector<std::string>{"8 B", "1 KiB", "1 MiB", "64 MiB", "size"}));
  const auto drawn = page.document.select_nodes((figure + "//text[contains(@class, 'middle')]").c_str());
  for (const auto& a : drawn)
    for (const auto& b : drawn) {
      const auto x = [](const auto& text) { return text.node().attribute("x").as_double(); };
      const auto y = [](const auto& text) { return text.node().attribute("y").as_double(); };
      const std::string of_a = a.node().child_value(), of_b = b.node().child_value();
      if (x(a) < x(b) && y(a) == y(b)) {
        EXPECT_GT(x(b) - x(a), 3.0 * static_cast<double>(of_a.size() + of_b.size())) << of_a << " and " << of_b;
      }
    }
}

TEST(Page, SetsNodesAgainstEachOther) {
  Results results = right();
  results.head.nodes = {"a", "b", "c", "d"};
  const std::vector<double> rates = {100, 74, 93, 130};
  for (std::size_t i = 0; i < 4; ++i) {
    const auto& node = results.head.nodes[i];
    results.samples.push_back(sample("rate", rates[i], -1, 0, node));  // median 96.5
    results.samples.push_back(sample("delay", rates[i], -1, 0, node, "less"));
    results.samples.push_back(sample("size", 64, -1, 0, node, "equal"));
    results.samples.push_back(sample("curve", 10, 8, 0, node));
    results.samples.push_back(sample("curve", i == 2 ? 50 : 100, 64, 0, node));  // c is slow with 64 B only
  }
  for (const char* pair : {"a - b", "a - c", "b - c"}) results.samples.push_back(sample("link", 20, -1, 0, pair));
  for (const char* pair : {"a - d", "b - d", "c - d"}) results.samples.push_back(sample("link", 11, -1, 0, pair));
  results.checks.push_back(check("bits", Status::fail, Action::replace_node, {{"data", "differs", "d"}}));
  results.checks.back().nodes = results.head.nodes;
  results.summary.exit_status = 1;
  const Parsed page(html_page(results, nullptr));
  const std::string table = "//section[@id='nodes']//table";
  const auto cell = [&](const std::string& row, const std::string& column) {
    const auto found = page.document.select_node((table + "[1]//tr[th='" + row + "']/td[count(preceding-sibling::td)=" +
                                                  "count(//section[@id='nodes']//table[1]//th[text()='" + column +
                                                  "']/preceding-sibling::th)-1]")
                                                     .c_str());
    std::string text = found.node().attribute("class").value();
    text += ": ";
    for (const auto& part : found.node().children()) text += std::string(part.child_value()) + part.value() + " ";
    text.pop_back();
    return text;
  };
  EXPECT_EQ(cell("a", "rate"), ": 100");
  EXPECT_EQ(cell("b", "rate"), "worse2: 74 -23 %");
  EXPECT_EQ(cell("d", "rate"), "better2: 130 +35 %");
  EXPECT_EQ(cell("b", "delay"), "better1: 74 -23 %");
  EXPECT_EQ(cell("d", "delay"), "worse3: 130 +35 %");
  EXPECT_EQ(cell("d", "size"), ": 64");
  EXPECT_EQ(cell("c", "curve"), "worse3: 50 -50 % at 64 B");
  EXPECT_EQ(cell("d", "bits"), "worse3: fail");
  EXPECT_EQ(cell("a", "bits"), ": –");
  EXPECT_EQ(page.text("//section[@id='nodes']/p"),
            "Failed, or 10 % or more worse than the median of the nodes: b (1 of 5), c (1 of 5), d (2 of 5).");
  const std::string matrix = "//section[@id='nodes']/div[last()]//tbody";
  EXPECT_EQ(page.texts(matrix + "/tr[1]/*"), (std::vector<std::string>{"a", "", "20", "20", "11-45 %"}));
  EXPECT_EQ(page.texts(matrix + "/tr[4]/*"), (std::vector<std::string>{"d", "11-45 %", "11-45 %", "11-45 %", ""}));
  EXPECT_EQ(page.count(matrix + "//td[@class='worse3']"), 6u);
}

TEST(Page, StaysSmallAndReadableWithManyNodes) {
  Results results = right();
  results.head.nodes.clear();
  for (int n = 0; n < 64; ++n) results.head.nodes.push_back("node" + std::to_string(n));
  std::mt19937 random(7);
  std::uniform_real_distribution<double> noise(0.99, 1.01);
  for (int m = 0; m < 60; ++m)
    for (std::size_t n = 0; n < 64; ++n)
      for (const double band : {8.0, 4096.0, 1048576.0})
        results.samples.push_back(sample("metric " + std::to_string(m),
                                         100 * noise(random) * (m == 7 && n == 5 ? 0.5 : 1), band, 0,
                                         results.head.nodes[n]));
  for (int m = 0; m < 3; ++m)
    for (std::size_t a = 0; a < 64; ++a)
      for (std::size_t b = a + 1; b < 64; ++b)
        results.samples.push_back(sample("link " + std::to_string(m), 20 * noise(random), -1, 0,
                                         results.head.nodes[a] + " - " + results.head.nodes[b]));
  const std::string text = html_page(results, &results);
  EXPECT_LT(text.size(), 3'000'000u);
  const Parsed page(text);
  EXPECT_EQ(page.count("//section[@id='nodes']/div[@class='scrolled'][1]//thead/tr/th"), 2u);  // what is bad, alone
  EXPECT_EQ(page.text("//section[@id='nodes']/div[@class='scrolled'][1]//thead/tr/th[2]"), "metric 7GB/s");
  EXPECT_EQ(page.count("//section[@id='nodes']/details//thead/tr/th[position()>1]"), 59u);
  EXPECT_EQ(page.count("//section[@id='nodes']/details//table[count(thead/tr/th)>11]"), 0u);
  EXPECT_EQ(page.count("//section[@id='curves']//figure"), 60u);
}

TEST(Page, NeedsNoSamplesAndNoChecks) {
  for (const bool complete : {true, false}) {
    Results results;
    results.head.command = "image-check";
    results.complete = complete;
    const Parsed page(html_page(results, nullptr)), junit(junit_xml(results));
    ASSERT_TRUE(page.result && junit.result);
    EXPECT_EQ(page.count("//section"), 0u);
    EXPECT_TRUE(contains(page.text("//h1"), complete ? "FAIL" : "INCOMPLETE"));
    EXPECT_EQ(junit.count(complete ? "//failure" : "//error"), 1u);
  }
  Results one = right();
  one.head.nodes = {"alone"};
  for (auto& each : one.checks) each.nodes = {"alone"};
  one.samples = {sample("rate", 7, -1, 0, "alone")};
  const Parsed page(html_page(one, nullptr));
  EXPECT_TRUE(contains(page.text("//h1"), "PASS"));
  EXPECT_EQ(page.text("//section[@id='values']//td[2]"), "7");
  EXPECT_EQ(page.count("//section[@id='nodes']"), 0u);
  one.checks.push_back(check("training", Status::fail, Action::drain, {{"deadline", "ended after 60 s", ""}}));
  one.checks.push_back(check("odd", Status::fail, Action::look, {{"output", "an odd line", ""}}));
  EXPECT_EQ(Parsed(html_page(one, nullptr)).text("//header/p"), "To do: drain the node alone, look at odd.");
  EXPECT_EQ(Parsed(html_page(one, nullptr)).text("//article[2]/h3"), "Look at alone: odd");
  one.head.nodes = {"two", "more"};
  EXPECT_EQ(Parsed(html_page(one, nullptr)).text("//header/p"),
            "To do: drain the node that fails training, look at odd.");
}

// WCAG 2: relative luminance, and contrast of at least 4.5 between text and what is behind it.
double luminance(const std::string& colour) {
  double sum = 0;
  const double weights[] = {0.2126, 0.7152, 0.0722};
  for (std::size_t i = 0; i < 3; ++i) {
    const double share = std::stoi(colour.substr(1 + 2 * i, 2), nullptr, 16) / 255.0;
    sum += weights[i] * (share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4));
  }
  return sum;
}

TEST(Page, HasContrastInBothSchemes) {
  const std::string style = page_style;
  const auto dark_at = style.find("prefers-color-scheme: dark");
  ASSERT_NE(dark_at, std::string::npos);
  for (const std::string& scheme : {style.substr(0, dark_at), style.substr(dark_at)}) {
    std::map<std::string, std::string> colours;
    const std::regex definition("--([a-z0-9-]+): (#[0-9a-f]{6});");
    for (auto at = std::sregex_iterator(scheme.begin(), scheme.end(), definition); at != std::sregex_iterator(); ++at)
      colours.emplace((*at)[1], (*at)[2]);
    for (const auto& [text, grounds] : std::map<std::string, std::vector<std::string>>{
             {"text", {"ground", "raised", "good-ground", "bad-ground", "doubt-ground"}},
             {"soft", {"ground", "raised"}},
             {"run", {"ground"}},
             {"base", {"ground"}},
             {"bad", {"ground", "bad-ground"}},
             {"good", {"ground", "good-ground"}},
             {"doubt", {"ground", "doubt-ground"}},
             {"on-heat", {"worse1", "worse2", "worse3", "better1", "better2"}}})
      for (const auto& ground : grounds) {
        const double a = luminance(colours.at(text)), b = luminance(colours.at(ground));
        EXPECT_GE((std::max(a, b) + 0.05) / (std::min(a, b) + 0.05), 4.5)
            << text << " on " << ground << scheme.substr(0, 40);
      }
  }
}

// What Jenkins' junit-10.xsd allows, and that the counts are right; GitLab and GitHub's reporters take less.
std::string wrong_in_junit(const std::string& text) {
  const Parsed junit(text);
  if (!junit.result) return junit.result.description();
  struct Rule {
    std::set<std::string> attributes, required, children;
  };
  const std::map<std::string, Rule> rules{
      {"testsuites", {{"name", "time", "tests", "failures", "errors"}, {}, {"testsuite"}}},
      {"testsuite",
       {{"name", "tests", "failures", "errors", "group", "time", "skipped", "timestamp", "hostname", "id", "package",
         "file", "log", "url"},
        {"name", "tests", "failures", "errors"},
        {"testsuite", "properties", "testcase", "system-out", "system-err"}}},
      {"testcase",
       {{"name", "time", "classname", "group"}, {"name"}, {"skipped", "error", "failure", "system-out", "system-err"}}},
      {"failure", {{"type", "message"}, {}, {}}},
      {"error", {{"type", "message"}, {}, {}}},
      {"skipped", {{"type", "message"}, {}, {}}},
      {"system-out", {}}};
  if (std::string(junit.document.document_element().name()) != "testsuites") return "another root";
  for (const auto& found : junit.document.select_nodes("//*")) {
    const std::string name = found.node().name();
    const auto rule = rules.find(name);
    if (rule == rules.end()) return "no element " + name;
    for (const auto& attribute : found.node().attributes()) {
      if (!rule->second.attributes.count(attribute.name())) return name + " has no " + attribute.name();
      const std::string which = attribute.name(), value = attribute.value();
      if (which == "time" && !std::regex_match(value, std::regex("[0-9]+\\.[0-9]{3}"))) return "time " + value;
      if (which == "timestamp" && !std::regex_match(value, std::regex("....-..-..T..:..:.."))) return "at " + value;
    }
    for (const auto& attribute : rule->second.required)
      if (!found.node().attribute(attribute.c_str())) return name + " without " + attribute;
    for (const auto& child : found.node().children())
      if (child.type() == pugi::node_element && !rule->second.children.count(child.name()))
        return std::string(child.name()) + " in " + name;
  }
  for (const auto& found : junit.document.select_nodes("//testsuite"))
    for (const auto& [attribute, element] :
         {std::pair("tests", "testcase"), std::pair("failures", "testcase/failure"),
          std::pair("errors", "testcase/error"), std::pair("skipped", "testcase/skipped")})
      if (found.node().attribute(attribute).as_uint() != found.node().select_nodes(element).size())
        return std::string("wrong number of ") + attribute;
  std::set<std::string> names;
  for (const auto& found : junit.document.select_nodes("//testcase"))
    if (!names
             .insert(std::string(found.node().attribute("classname").value()) + "/" +
                     found.node().attribute("name").value())
             .second)
      return std::string("twice: ") + found.node().attribute("name").value();
  return "";
}

TEST(Junit, IsWhatCiSystemsTake) {
  Results launches = wrong();
  for (auto each : wrong().checks) each.launch = 1, launches.checks.push_back(each);
  Results cut_off = wrong();
  cut_off.complete = false;
  for (const auto& results : {right(), wrong(), launches, cut_off, compared()})
    EXPECT_EQ(wrong_in_junit(junit_xml(results)), "");
  // The rules see what is wrong.
  const std::string text = junit_xml(wrong());
  for (const auto& [from, to] :
       {std::pair("failures=\"5\"", "failures=\"4\""), std::pair("<skipped ", "<ignored "),
        std::pair("classname=", "class="), std::pair("time=\"1.500\"", "time=\"1,5\""), std::pair("</testsuites>", ""),
        std::pair("testcase name=\"pi\"", "testcase name=\"wiring\""), std::pair("testcase name=\"pi\"", "testcase"),
        std::pair(">", "><p/>")}) {
    std::string broken = text;
    const auto at = broken.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    EXPECT_NE(wrong_in_junit(broken.replace(at, std::string(from).size(), to)), "") << from << " as " << to;
  }
}

TEST(Junit, HasEveryCheckWithItsReason) {
  const Parsed junit(junit_xml(wrong()));
  const auto of = [&](const std::string& name, const std::string& path) {
    const auto found = junit.document.select_node(("//testcase[@name='" + name + "']/" + path).c_str());
    return std::string(found.attribute() ? found.attribute().value() : found.node().child_value());
  };
  EXPECT_EQ(junit.count("//testcase"), 10u);  // and the whole run
  EXPECT_EQ(junit.count("//testcase[@name='pi'][failure or error or skipped]"), 0u);
  EXPECT_EQ(of("bits", "failure/@message"), "data on node0: 1 word differs");
  EXPECT_EQ(of("bits", "failure"), "data on node0: 1 word differs\nto do: replace the node\n");
  EXPECT_EQ(of("silent", "failure/@type"), "TIMEOUT");
  EXPECT_EQ(of("shaky", "failure/@type"), "FLAKY");
  EXPECT_EQ(of("gpu", "skipped/@message"), "no GPU");
  EXPECT_EQ(of("late", "error/@message"), "the budget is used up");
  EXPECT_EQ(of("bits", "@time"), "1.500");
  EXPECT_TRUE(contains(of("bits", "system-out"), "\ncommand: mpirun -n 2 ./bits --size 4M\n"));
  EXPECT_EQ(of("the whole run", "failure/@message"), "4 failed, 1 flaky, 1 not run, 2 passed, 1 skipped");
}

TEST(Junit, IsNoPassWhereTheRunIsNone) {
  EXPECT_EQ(Parsed(junit_xml(right())).count("//failure|//error"), 0u);
  Results results = right();
  results.complete = false;
  EXPECT_EQ(Parsed(junit_xml(results)).count("//testcase[@name='the whole run']/error[@type='INCOMPLETE']"), 1u);
  results = right();
  for (auto& each : results.checks) each.status = Status::skip;
  results.summary = {0, 0, 0, 2, 0, 1, 3};
  EXPECT_EQ(Parsed(junit_xml(results)).count("//testcase[@name='the whole run']/error[@type='COULD NOT TEST']"), 1u);
  results = compared();
  results.checks.clear();
  EXPECT_EQ(Parsed(junit_xml(results)).count("//testcase[@name='the whole run']/failure[@type='FAIL']"), 1u);
}

TEST(Reports, AreWrittenWholeOrNotAtAll) {
  const TemporaryFolder parent;
  const auto folder = parent / "results";
  std::filesystem::create_directory(folder);
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) all.insert(entry.path().filename());
    return all;
  };
  write_reports(folder, right(), nullptr);
  EXPECT_EQ(names(), (std::set<std::string>{"report.html", "junit.xml", "metrics.prom"}));
  // A disk that is full stands for what ends within a page.
  const std::string before = text_of(folder / "report.html");
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  const rlimit full{1000, old.rlim_max};
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  setrlimit(RLIMIT_FSIZE, &full);
  std::string error;
  try {
    write_reports(folder, wrong(), nullptr);
  } catch (const multinode::UsageError& e) {
    error = e.what();
  }
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  EXPECT_EQ(error, "cannot write " + (folder / "report.html").string() + ": File too large");
  EXPECT_EQ(text_of(folder / "report.html"), before);
  EXPECT_EQ(names(), (std::set<std::string>{"report.html", "junit.xml", "metrics.prom"}));
  std::filesystem::remove(folder / "junit.xml");
  std::filesystem::create_directories(folder / "junit.xml" / "in the way");
  EXPECT_THROW(write_reports(folder, wrong(), nullptr), multinode::UsageError);
  EXPECT_EQ(names(), (std::set<std::string>{"report.html", "junit.xml", "metrics.prom"}));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(write_reports(folder, right(), nullptr), multinode::UsageError);
}

#ifdef PATH_image_check
TEST(Program, WritesBothReports) {
  const TemporaryFolder parent;
  const auto folder = parent / "results";
  {
    ResultsWriter writer(folder);
    const Results results = wrong();
    writer.write(results.head);
    for (const auto& each : results.checks) writer.write(each);
    writer.write(results.summary);
  }
  auto ran = multinode::testing::run({PATH_image_check, "report", folder, "--baseline", folder});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out, (folder / "report.html").string() + "\n");
  for (const char* name : {"report.html", "junit.xml"}) EXPECT_TRUE(Parsed(text_of(folder / name)).result) << name;
  for (const std::vector<std::string>& arguments : {std::vector<std::string>{"report"},
                                                    {"report", (folder / "none").string()},
                                                    {"report", folder, "more"},
                                                    {"report", folder, "--baseline", (folder / "none").string()},
                                                    {"nonsense"},
                                                    {}}) {
    std::vector<std::string> command{PATH_image_check};
    command.insert(command.end(), arguments.begin(), arguments.end());
    ran = multinode::testing::run(command);
    EXPECT_EQ(ran.status, 2) << ran.out;
    EXPECT_NE(ran.err, "");
  }
}
#endif

}  // namespace report_test
