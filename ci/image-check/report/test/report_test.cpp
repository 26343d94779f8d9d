#include "report.hpp"
#include "page_style.hpp"
#include "xml.hpp"

#include <multinode/options.hpp>
#include <testing/program_test.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <regex>
#include <set>
#include <sstream>

namespace {

using namespace image_check;
using multinode::testing::occurrences;

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
  EXPECT_EQ(titles, (std::vector<std::string>{
                        "Replace the node node0: what bits shows", "Drain the node node1: what silent shows",
                        "Reboot the node node1: what limits shows", "Look: what odd shows", "Look: what shaky shows"}));
  EXPECT_EQ(page.text("//header/p"),
            "To do: replace the node node0, drain the node node1, reboot the node node1, look.");
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

TEST(Reports, AreWrittenWholeOrNotAtAll) {
  const auto folder = std::filesystem::temp_directory_path() / ("report-" + std::to_string(std::random_device()()));
  std::filesystem::create_directories(folder);
  const auto names = [&] {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) all.insert(entry.path().filename());
    return all;
  };
  write_reports(folder, right(), nullptr);
  EXPECT_EQ(names(), (std::set<std::string>{"report.html", "junit.xml"}));
  std::filesystem::remove(folder / "junit.xml");
  std::filesystem::create_directories(folder / "junit.xml" / "in the way");
  EXPECT_THROW(write_reports(folder, wrong(), nullptr), multinode::UsageError);
  EXPECT_EQ(names(), (std::set<std::string>{"report.html", "junit.xml"}));
  std::filesystem::remove_all(folder);
  EXPECT_THROW(write_reports(folder, right(), nullptr), multinode::UsageError);
}

#ifdef PATH_image_check
TEST(Program, WritesBothReports) {
  const auto folder = std::filesystem::temp_directory_path() / ("report-" + std::to_string(std::random_device()()));
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
  for (const char* name : {"report.html", "junit.xml"}) {
    std::stringstream text;
    text << std::ifstream(folder / name).rdbuf();
    EXPECT_TRUE(Parsed(text.str()).result) << name;
  }
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
  std::filesystem::remove_all(folder);
}
#endif

}  // namespace
