#include "report.hpp"

#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <pugixml.hpp>

namespace report_test {

using namespace image_check;

CheckResult check(const std::string& name, Status status, Action action = Action::none,
                  std::vector<Finding> findings = {}) {
  return {.check = name,
          .title = "what " + name + " shows",
          .status = status,
          .action = action,
          .seconds = 1.5,
          .nodes = {"node0", "node1"},
          .command = "mpirun -n 2 ./" + name + " --size 4M",
          .findings = std::move(findings),
          .log = "logs/" + name + ".log"};
}

Sample sample(const std::string& metric, double value, double band = -1, int launch = 0, const std::string& node = "") {
  return {"a check", metric, band, "GB/s", "more", value, launch, node};
}

Results right() {
  Results results;
  results.head = {"gate",
                  "image-check run --suite gate",
                  "2026-11-21T20:15:07Z",
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
  results.checks.push_back(check("odd", Status::fail, Action::investigate, {{"output", "an odd line", ""}}));
  results.checks.push_back(check("limits", Status::fail, Action::reboot, {{"limit", "64 KiB locked", "node1"}}));
  results.checks.push_back(check("bits", Status::fail, Action::replace_node, {{"data", "1 word differs", "node0"}}));
  results.checks.push_back(
      check("silent", Status::timeout, Action::drain, {{"deadline", "ended after 60 s", "node1"}}));
  results.checks.push_back(check("shaky", Status::flaky, Action::investigate, {{"data", "right when run again", ""}}));
  auto skipped = check("gpu", Status::skip);
  skipped.reason = "no GPU";
  results.checks.push_back(skipped);
  auto not_run = check("late", Status::not_run);
  not_run.reason = "the budget is used up";
  results.checks.push_back(not_run);
  results.summary = {2, 4, 1, 1, 1, 298, 1};
  return results;
}

Results compared() {
  Results results = right();
  results.head.suite = "compare";
  results.checks = {check("all_reduce, 64 B", Status::pass), check("memory, node1", Status::fail, Action::investigate)};
  results.facts = {{"node", "memory", "2 GiB", "node0"},
                   {"node", "memory", "1 GiB", "node1"},
                   {"node", "cores", "2", "node0"},
                   {"node", "cores", "2", "node1"}};
  results.differences = {{"version", "Open MPI", "4.1.4", "4.1.6"}, {"setting", "OMPI_MCA_btl", "", "^vader"}};
  for (const double band : {8.0, 64.0, 512.0, 4096.0}) {
    const std::vector<double> a{band, 1.1 * band, 0.9 * band};
    if (band == 512)
      results.comparisons.push_back(
          {"all_reduce", band, "GB/s", "more", "", a, {band / 2}, {500}, {250}, 0.05, "worse"});
    else
      results.comparisons.push_back({"all_reduce", band, "GB/s", "more", "", a, {band}, {}, {}, 0.05, "same"});
  }
  results.comparisons.push_back({"time", -1, "s", "less", "", {2}, {3}, {2}, {3}, 0.1, "worse"});
  results.comparisons.push_back({"speed", -1, "s", "less", "node1", {2}, {1}, {2}, {1}, 0.1, "better"});
  results.comparisons.push_back({"calm", 8, "s", "less", "", {2}, {2}, {}, {}, 0.1, "same"});
  results.summary.exit_status = 1;
  return results;
}

class Parsed {
 public:
  explicit Parsed(const std::string& text) : result(document.load_string(text.c_str(), pugi::parse_full)) {}
  std::vector<std::string> texts(const std::string& path) const {
    std::vector<std::string> all;
    for (const auto& found : document.select_nodes(path.c_str()))
      all.push_back(pugi::xpath_query("string(.)").evaluate_string(found));
    return all;
  }
  std::string text(const std::string& path) const {
    const auto all = texts(path);
    return all.empty() ? "(no " + path + ")" : all.front();
  }
  std::size_t count(const std::string& path) const { return document.select_nodes(path.c_str()).size(); }

  pugi::xml_document document;
  pugi::xml_parse_result result;
};

// The verdict, which the page and the JUnit file have too.
std::string shown_verdict(const Results& results) {
  const auto [word, why] = verdict(results);
  const std::string mark = word == "PASS" ? "✓ " : word == "FAIL" ? "✗ " : "? ";
  EXPECT_EQ(Parsed(html_page(results)).text("//h1"), mark + word + why + ".");
  const std::string element = word == "FAIL" ? "failure" : "error";
  EXPECT_EQ(Parsed(junit_xml(results)).count("//testcase[@name='the whole run']/" + element), word == "PASS" ? 0u : 1u);
  return word + ": " + why;
}

TEST(Verdict, IsNoBetterThanTheResults) {
  EXPECT_EQ(shown_verdict(right()), "PASS: 2 passed");
  EXPECT_EQ(Parsed(junit_xml(right())).count("//failure|//error"), 0u);
  EXPECT_EQ(shown_verdict(wrong()), "FAIL: 4 failed, 1 flaky, 1 not run, 2 passed, 1 skipped");
  EXPECT_SAYS(shown_verdict(compared()), "FAIL: 1 failed, 1 passed");
  Results results = right();
  results.complete = false;
  EXPECT_EQ(shown_verdict(results), "INCOMPLETE: the run did not come to its end; 2 passed");
  results = right();
  results.checks[1].status = Status::not_run;
  EXPECT_EQ(shown_verdict(results), "COULD NOT TEST: 1 not run, 1 passed");
  for (auto& each : results.checks) each.status = Status::skip;
  EXPECT_EQ(shown_verdict(results), "COULD NOT TEST: 2 skipped");
  results.checks.clear();
  EXPECT_EQ(shown_verdict(results), "COULD NOT TEST: nothing was checked");
  for (const Status status : {Status::fail, Status::timeout, Status::flaky}) {
    results = right();
    results.checks.push_back(check("more", status));
    EXPECT_SAYS(shown_verdict(results), "FAIL") << name_of(status);
  }
}

TEST(Page, PutsTheMostSevereFirst) {
  const Parsed page(html_page(wrong()));
  EXPECT_EQ(page.texts("//section[@id='results']//tbody/tr/th/text()"),
            (std::vector<std::string>{"bits", "silent", "limits", "odd", "shaky", "wiring", "pi", "gpu", "late"}));
  EXPECT_EQ(page.text("//section[@id='results']//tbody/tr[1]/td[2]"),
            "replace the node:\ndata on node0: 1 word differsmpirun -n 2 ./bits --size 4M");
  EXPECT_EQ(page.count("//section[@id='results']//tbody/tr[1]//a[@href='./logs/bits.log']"), 1u);
}

TEST(Page, HoldsWhatAnyProgramPrints) {
  const std::string evil = "<script>alert(1)</script> & \"quoted\" 'it' \x1b[31m \x01 \xff\xfe \xEF\xBF\xBF ]]> -->";
  Results results = wrong();
  auto& failed = results.checks[2];
  failed.check = failed.title = failed.command = failed.log = failed.reason = evil;
  failed.nodes = {evil};
  failed.findings = {{evil, evil + std::string(1, '\0') + std::string(100'000, 'x'), evil}};
  results.head = {evil, evil, evil, evil, {evil}, 1, {{evil, evil}}, {{evil, evil}}, {{evil, evil}}};
  results.samples = {sample(evil, 1, -1, 0, evil), sample(evil, 2, 8), sample(evil, 2, 64), sample(evil, 2, 512),
                     sample(evil, 2, 64, 0, evil + " - " + evil)};
  results.differences = {{evil, evil, evil, evil}};
  results.comparisons = {{evil, 8, evil, evil, evil, {1}, {2}, {}, {}, 0.1, evil}};
  for (const std::string& text : {html_page(results), junit_xml(results)}) {
    const Parsed parsed(text);
    ASSERT_TRUE(parsed.result) << parsed.result.description();
    EXPECT_EQ(parsed.count("//script"), 0u);
    for (const char c : text) EXPECT_TRUE(static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\t');
    EXPECT_SAYS(text, "?[31m ? ");
    EXPECT_SAYS(text, "&lt;script&gt;alert(1)&lt;/script&gt; &amp; ");
  }
  const Parsed page(html_page(results));
  const std::string shown = page.text("//section[@id='results']//tbody/tr[4]/td[2]");
  EXPECT_LT(shown.size(), 3000u);
  EXPECT_SAYS(shown, " bytes more)");
}

TEST(Page, NeedsNothingElse) {
  const std::string text = html_page(wrong());
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
  const std::string style = page.text("//style");
  EXPECT_EQ(style.find_first_of("<>&"), std::string::npos);  // HTML would read their escapes as they are
  for (const char* load : {"url(", "@import"}) EXPECT_EQ(style.find(load), std::string::npos);
  EXPECT_EQ(page.count("//section[not(h2)]"), 0u);
  EXPECT_EQ(page.count("//svg[not(title)]"), 0u);
  EXPECT_EQ(page.count("//table[not(thead/tr/th[@scope='col'])]"), 0u);
}

TEST(Page, GivesMediansRangesAndCurves) {
  Results results = right();
  results.checks = {check("a check", Status::pass), check("a check", Status::fail, Action::investigate)};
  results.checks[1].other_work = 0.6;
  results.samples = {sample("one", 1, 8, 0),  sample("one", 3, 8, 0),      sample("one", 2, 8, 0),
                     sample("one", 10, 8, 1), sample("one", 1234567, 512), sample("two", 0.25, -1, 0)};
  for (const double rate : {74.0, 93.0, 130.0})
    results.samples.push_back(sample("node", rate, -1, 0, std::to_string(rate)));
  const Parsed page(html_page(results));
  const std::string row = "//section[@id='results']//tbody/tr[1]/";
  EXPECT_EQ(page.text(row + "td[1]"),
            "✗ fail3.0 s, 2 launches, other work 60 %");  // of its launches
  EXPECT_EQ(page.text(row + "td[2]"),
            "investigate:\nnode: 93 GB/s (74 to 130, n = 3)\none, 512 B: 1234567 GB/s\ntwo: 0.25 GB/s"
            "mpirun -n 2 ./a check --size 4M");
  EXPECT_EQ(page.count(row + "td[3]/svg/polyline"), 1u);
  EXPECT_EQ(page.text(row + "td[3]/svg/title"), "6 to 1.23e+06, over sizes from 8 to 512 bytes");
  EXPECT_EQ(page.count("//section[@id='results']//tbody/tr"), 1u);
}

TEST(Page, DrawsTheMatrixOfPairs) {
  Results results = right();
  for (const auto& [pair, value] : {std::pair{"a - b", 10.0}, std::pair{"a - c", 9.0}, std::pair{"b - c", 0.0}})
    results.samples.push_back(sample("bandwidth of a pair", value, -1, 0, pair));
  const Parsed page(html_page(results));
  EXPECT_EQ(page.texts("//section[@id='pairs']//tbody/tr[2]/*"), (std::vector<std::string>{"b", "10", "–", "0"}));
  EXPECT_EQ(page.texts("//section[@id='pairs']//td[contains(@class, 'bad-text')]"),
            (std::vector<std::string>{"0", "0"}));
}

TEST(Page, ShowsWhatIsSuspect) {
  const Parsed page(html_page(compared()));
  const std::string section = "//section[@id='results']";
  // A row per metric, those in question first, then what was checked, then the other metrics.
  EXPECT_EQ(page.texts(section + "//tbody/tr/th/text()"),
            (std::vector<std::string>{"memory, node1", "all_reduce, 512 B", "speed, node1", "time", "calm, 8 B"}));
  EXPECT_EQ(
      page.texts(section + "//tbody/tr[2]/*"),
      (std::vector<std::string>{
          "all_reduce, 512 B", "✗ worse",
          "250 GB/s, and was 500: 50 % worse; cannot see less than 0 %; and only 1 of 3 fresh launches of B could "
          "measure it again: the others failed or did not endA: 460.8 to 563.2, n = 3, B: 256, n = 1",
          "8 to 4.1e+03, over sizes from 8 to 4096 bytes", ""}));
  EXPECT_EQ(page.texts("//section[@id='with']//tbody/tr[position() < 6]/*"),
            (std::vector<std::string>{"Open MPI", "4.1.4 → 4.1.6", "version", "OMPI_MCA_btl", "– → ^vader", "setting",
                                      "cores", "2", "all 2", "memory", "1 GiB", "node1", "memory", "2 GiB", "node0"}));
}

// 1,000 nodes that fail, and whose metrics are compared: a page that a browser opens, worst first.
TEST(Page, OfAThousandNodesIsShort) {
  Results results = compared();
  std::vector<Finding> findings;
  std::vector<std::string> nodes;
  for (int n = 0; n < 1000; ++n) {
    nodes.push_back("node" + std::to_string(n));
    findings.push_back({"limit", "64 KiB locked", nodes.back()});
    for (const double band : {8.0, 4096.0, 1048576.0})
      results.samples.push_back(sample("rate", n % 2 ? 100 : 50, band, 0, nodes.back()));
    results.checks.push_back(check("gpus, " + nodes.back(), Status::fail, Action::investigate));
    for (const char* metric : {"memory", "matrix"})
      results.comparisons.push_back({metric, -1, "GB/s", "more", nodes.back(), {1}, {1}, {}, {}, 0.1, "same"});
  }
  results.head.nodes = nodes;
  results.checks.push_back(check("limits", Status::fail, Action::replace_node, findings));
  const std::string text = html_page(results);
  EXPECT_LT(text.size(), 400'000u);
  const Parsed page(text);
  const std::string first = page.text("//section[@id='results']//tbody/tr[1]/td[2]");
  EXPECT_EQ(first.rfind("replace the node:\nlimit on node0: 64 KiB locked\n", 0), 0u);
  EXPECT_SAYS(first, "and 980 more findings in results.jsonl");
  EXPECT_EQ(page.count("//section[@id='results']//tbody/tr"), 500u);
  EXPECT_SAYS(page.text("//section[@id='results']/div/p"), "more are in results.jsonl");
}

// What Jenkins' junit-10.xsd forbids, as XPath, and wrong counts; GitLab and GitHub's reporters take less.
std::string wrong_in_junit(const std::string& text) {
  const Parsed junit(text);
  if (!junit.result) return junit.result.description();
  for (const char* forbidden :
       {"//*[not(self::testsuites or self::testsuite or self::testcase or self::failure or self::error or "
        "self::skipped "
        "or self::system-out)]",
        "/*[not(self::testsuites)]", "//testsuites/*[not(self::testsuite)]", "//testsuite/*[not(self::testcase)]",
        "//testcase[not(@name)] | //testsuite[not(@name)]",
        "//testcase/@*[name()!='name' and name()!='classname' and name()!='time']",
        "//*[@time][translate(@time, '0123456789', '')!='.']", "//testsuite[@tests!=count(testcase)]",
        "//testsuite[@failures!=count(testcase/failure)]", "//testsuite[@errors!=count(testcase/error)]",
        "//testsuite[@skipped!=count(testcase/skipped)]"})
    if (junit.count(forbidden)) return forbidden;
  return "";
}

TEST(Junit, IsWhatCiSystemsTake) {
  Results launches = wrong();
  for (auto each : wrong().checks) each.launch = 1, launches.checks.push_back(each);
  Results cut_off = wrong();
  cut_off.complete = false;
  for (const auto& results : {right(), wrong(), launches, cut_off, compared()})
    EXPECT_EQ(wrong_in_junit(junit_xml(results)), "");
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
  EXPECT_EQ(of("bits", "failure"), "data on node0: 1 word differs");
  EXPECT_SAYS(of("bits", "system-out"), "\nto do: replace the node\n");
  EXPECT_EQ(of("silent", "failure/@type"), "timeout");
  EXPECT_EQ(of("shaky", "failure/@type"), "flaky");
  EXPECT_EQ(of("gpu", "skipped/@message"), "no GPU");
  EXPECT_EQ(of("late", "error/@message"), "the budget is used up");
  EXPECT_EQ(of("bits", "@time"), "1.500");
  EXPECT_SAYS(of("bits", "system-out"), "\ncommand: mpirun -n 2 ./bits --size 4M\n");
  EXPECT_EQ(of("the whole run", "failure/@message"), "4 failed, 1 flaky, 1 not run, 2 passed, 1 skipped");
}

}  // namespace report_test
