#include "html.hpp"
#include "report.hpp"

#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <utility>

namespace image_check {

namespace {

std::string fixed(double seconds) { return fmt::format("{:.3f}", seconds); }

pugi::xml_node start_suite(pugi::xml_node suites, const std::string& name, const Head& head) {
  auto suite = suites.append_child("testsuite");
  set(suite, "name", name);
  std::string when = head.started;
  if (!when.empty() && when.back() == 'Z') when.pop_back();  // as the format has it
  set(suite, "timestamp", when);
  return suite;
}

pugi::xml_node add_test(pugi::xml_node suite, const std::string& name, const std::string& class_name, double seconds) {
  auto test = suite.append_child("testcase");
  set(test, "name", name);
  set(test, "classname", class_name);
  set(test, "time", fixed(seconds));
  return test;
}

void not_passed(pugi::xml_node test, const char* element, const std::string& type, const std::string& message,
                const std::string& text = {}) {
  const auto node = add(test, element, text);
  set(node, "type", type);
  set(node, "message", message);
}

void finish(pugi::xml_node suite) {
  double seconds = 0;
  for (const auto& test : suite.children("testcase")) seconds += test.attribute("time").as_double();
  set(suite, "time", fixed(seconds));
  for (const auto& [count, path] : {std::pair("tests", "testcase"), std::pair("failures", "testcase/failure"),
                                    std::pair("errors", "testcase/error"), std::pair("skipped", "testcase/skipped")})
    set(suite, count, std::to_string(suite.select_nodes(path).size()));
}

std::string sentence(const Finding& finding) {
  return finding.detector + (finding.node.empty() ? "" : " on " + finding.node) + ": " + finding.text;
}

void add_check(pugi::xml_node suite, const std::string& class_name, CheckResult check) {
  // Each of several nodes is a test, with the findings that blame it; the test of the check has the other findings.
  const bool ran = check.status != Status::skip && check.status != Status::not_run, blames_all = check.findings.empty();
  if (check.nodes.size() > 1 && ran) {
    for (const auto& node : std::exchange(check.nodes, {})) {
      CheckResult of_node{.check = node, .status = Status::pass, .action = check.action};
      const auto own = std::stable_partition(check.findings.begin(), check.findings.end(),
                                             [&](const Finding& finding) { return finding.node != node; });
      of_node.findings.assign(own, check.findings.end());
      check.findings.erase(own, check.findings.end());
      if (!of_node.findings.empty()) of_node.status = check.status;
      add_check(suite, class_name + "." + check.check, of_node);
    }
    if (check.findings.empty() && !blames_all) check.status = Status::pass;
  }
  const auto test = add_test(suite, check.check, class_name, check.seconds);
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  std::string message = check.findings.empty() ? check.reason : first_line(sentence(check.findings.front()));
  if (message.empty()) message = name_of(check.status);
  std::string all;
  for (const auto& finding : check.findings) all += sentence(finding) + '\n';
  if (check.action != Action::none) all += std::string("to do: ") + words(check.action) + '\n';
  if (check.status == Status::skip)
    not_passed(test, "skipped", name_of(check.status), message);
  else if (check.status != Status::pass)
    not_passed(test, check.status == Status::not_run ? "error" : "failure", name_of(check.status), message, all);
  std::string out;
  if (!check.title.empty()) out += check.title + '\n';
  if (!check.command.empty()) out += "command: " + check.command + '\n';
  if (!check.nodes.empty()) out += "nodes: " + multinode::join(check.nodes) + '\n';
  if (!check.log.empty()) out += "log: " + check.log + '\n';
  if (!out.empty()) add(test, "system-out", out);
}

}  // namespace

std::string junit_xml(const Results& results) {
  pugi::xml_document document;
  auto declaration = document.append_child(pugi::node_declaration);
  set(declaration, "version", "1.0");
  set(declaration, "encoding", "UTF-8");
  const auto suites = document.append_child("testsuites");
  const std::string suite_name = "image-check " + results.head.suite;
  set(suites, "name", suite_name);

  std::map<int, std::vector<const CheckResult*>> launches;
  for (const auto& check : results.checks) launches[check.launch].push_back(&check);
  for (const auto& [launch, checks] : launches) {
    const std::string which = launches.size() == 1 ? "" : ", launch " + std::to_string(launch);
    const auto suite = start_suite(suites, suite_name + which, results.head);
    for (const auto* check : checks) add_check(suite, suite_name + which, *check);
    finish(suite);
  }
  const auto whole = start_suite(suites, suite_name + ", the whole run", results.head);
  const auto test = add_test(whole, "the whole run", suite_name, results.summary.seconds);
  const auto [word, why] = verdict(results);
  if (word != "PASS") not_passed(test, word == "FAIL" ? "failure" : "error", word, why);
  add(test, "system-out", word + ": " + why + "\ncommand: " + results.head.command + '\n');
  finish(whole);

  std::ostringstream text;
  document.save(text, " ");
  return text.str();
}

}  // namespace image_check
