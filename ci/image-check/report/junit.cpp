#include "html.hpp"
#include "report.hpp"

#include <fmt/core.h>

#include <map>
#include <sstream>

namespace image_check {

namespace {

// Attributes in their usual order; the counts are known at the end.
class Suite {
 public:
  Suite(pugi::xml_node suites, const std::string& name, const std::string& class_name, const Head& head)
      : node_(suites.append_child("testsuite")), class_name_(class_name) {
    set(node_, "name", name);
    for (const char* count : {"tests", "failures", "errors", "skipped", "time"}) node_.append_attribute(count);
    std::string when = head.started;
    if (!when.empty() && when.back() == 'Z') when.pop_back();  // as the format has it
    set(node_, "timestamp", when);
  }

  pugi::xml_node test(const std::string& name, double seconds) {
    pugi::xml_node test = node_.append_child("testcase");
    set(test, "name", name);
    set(test, "classname", class_name_);
    set(test, "time", fixed(seconds));
    ++tests_;
    seconds_ += seconds;
    return test;
  }
  void not_passed(pugi::xml_node test, const char* element, const std::string& type, const std::string& message,
                  const std::string& text = {}) {
    pugi::xml_node node = add(test, element, text);
    set(node, "type", type);
    set(node, "message", message);
    ++counts_[element];
  }
  void end() {
    set_count("tests", tests_);
    set_count("failures", counts_["failure"]);
    set_count("errors", counts_["error"]);
    set_count("skipped", counts_["skipped"]);
    node_.attribute("time").set_value(fixed(seconds_).c_str());
  }

 private:
  void set_count(const char* name, int count) { node_.attribute(name).set_value(count); }
  static std::string fixed(double seconds) { return fmt::format("{:.3f}", seconds); }

  pugi::xml_node node_;
  std::string class_name_;
  int tests_ = 0;
  double seconds_ = 0;
  std::map<std::string, int> counts_;
};

std::string sentence(const Finding& finding) {
  return finding.detector + (finding.node.empty() ? "" : " on " + finding.node) + ": " + finding.text;
}

void add_check(Suite& suite, const CheckResult& check) {
  const auto test = suite.test(check.check, check.seconds);
  const auto first_line = [](const std::string& text) { return text.substr(0, text.find('\n')); };
  std::string message = check.findings.empty() ? check.reason : first_line(sentence(check.findings.front()));
  if (message.empty()) message = name_of(check.status);
  std::string all;
  for (const auto& finding : check.findings) all += sentence(finding) + '\n';
  if (check.action != Action::none) all += std::string("to do: ") + words(check.action) + '\n';
  if (check.status == Status::skip)
    suite.not_passed(test, "skipped", name_of(check.status), message);
  else if (check.status != Status::pass)
    suite.not_passed(test, check.status == Status::not_run ? "error" : "failure", name_of(check.status), message, all);
  std::string out;
  if (!check.title.empty()) out += check.title + '\n';
  if (!check.command.empty()) out += "command: " + check.command + '\n';
  for (const auto& node : check.nodes) out += (&node == &check.nodes.front() ? "nodes: " : ", ") + node;
  if (!check.nodes.empty()) out += '\n';
  if (!check.log.empty()) out += "log: " + check.log + '\n';
  add(test, "system-out", out);
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
    Suite suite(suites, suite_name + which, suite_name + which, results.head);
    for (const auto* check : checks) add_check(suite, *check);
    suite.end();
  }
  Suite whole(suites, suite_name + ", the whole run", suite_name, results.head);
  const auto test = whole.test("the whole run", results.summary.seconds);
  const auto [word, why] = verdict(results);
  if (word != "PASS") whole.not_passed(test, word == "FAIL" ? "failure" : "error", word, why);
  add(test, "system-out", word + ": " + why + "\ncommand: " + results.head.command + '\n');
  whole.end();

  std::ostringstream text;
  document.save(text, " ");
  return text.str();
}

}  // namespace image_check
