#include "results.hpp"

#include "checks.hpp"

#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/options.hpp>
#include <multinode/base/text.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>
#include <sstream>
#include <stdexcept>
#include <system_error>

namespace image_check {

namespace {

// Of results.jsonl. A change that older programs would misread gets the next number.
constexpr int schema = 1;

constexpr std::size_t longest_file = 128 << 20, longest_line = 4 << 20;  // that are read: 10,000 nodes, in 4 launches

const std::vector<std::string> status_names{"pass", "fail", "timeout", "flaky", "skip", "not run"},
    action_names{"replace the node", "drain the node", "reboot the node", "investigate", ""};

}  // namespace

std::string name_of(Status status) { return status_names.at(static_cast<std::size_t>(status)); }
std::string words(Action action) { return action_names.at(static_cast<std::size_t>(action)); }
void to_json(nlohmann::json& json, Status status) { json = name_of(status); }
void to_json(nlohmann::json& json, Action action) { json = words(action); }
void from_json(const nlohmann::json& json, Status& status) { status = one_of<Status>(json, status_names); }
void from_json(const nlohmann::json& json, Action& action) { action = one_of<Action>(json, action_names); }

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Finding, detector, text, node)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CheckResult, check, title, status, action, seconds, launch, nodes, command, findings,
                                   reason, log, other_work)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Sample, check, metric, band_bytes, unit, better, value, launch, node, other_work)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Fact, check, name, value, node)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Difference, kind, name, a, b)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Comparison, metric, band_bytes, unit, better, node, a, b, again_a, again_b, limit,
                                   visible, verdict)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Summary, passed, failed, flaky, skipped, not_run, seconds, exit_status, cause)

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Head, suite, command, started, launcher, nodes, processes_per_node, machine,
                                   versions, settings)

void count(Summary& summary, Status status) {
  static constexpr int Summary::*counts[] = {&Summary::passed, &Summary::failed,  &Summary::failed,
                                             &Summary::flaky,  &Summary::skipped, &Summary::not_run};
  ++(summary.*counts[static_cast<std::size_t>(status)]);
}

void conclude(Summary& summary) {
  summary.exit_status = summary.failed + summary.flaky > 0           ? multinode::exit_wrong
                        : summary.not_run > 0 || summary.passed == 0 ? multinode::exit_untestable
                                                                     : multinode::exit_right;
}

namespace {

constexpr double tolerated = 0.03;

std::optional<double> number_in(const std::string& text) {
  const auto number = multinode::number_of<double>(text);
  return number ? number : text == "unlimited" ? std::optional(HUGE_VAL) : std::nullopt;
}

const std::set<std::string> limits{"memlock", "open_files", "processes",   "core_size",
                                   "stack",   "cpus",       "cgroup_cpus", "cgroup_memory",
                                   "memory",  "shm_bytes",  "tmp_bytes",   "address_space"};

}  // namespace

bool same_fact(const std::string& name, const std::string& a, const std::string& b) {
  if (a == b) return true;
  static const std::set<std::string> about{"processes", "shm_bytes", "tmp_bytes", "cgroup_memory", "memory", "gpus"};
  if (!about.contains(name)) return false;
  std::istringstream words_a(a), words_b(b);
  for (std::string of_a, of_b;;) {
    const bool more_a = static_cast<bool>(words_a >> of_a), more_b = static_cast<bool>(words_b >> of_b);
    if (more_a != more_b) return false;
    if (!more_a) return true;
    const auto x = number_in(of_a), y = number_in(of_b);
    const bool close = x && y && std::isfinite(*x) && std::isfinite(*y) &&
                       std::abs(*x - *y) <= tolerated * std::max(std::abs(*x), std::abs(*y));
    if (of_a != of_b && !close) return false;
  }
}

bool good_fact(const std::string& name, const std::string& a, const std::string& b) {
  if (same_fact(name, a, b)) return true;
  const auto x = number_in(a), y = number_in(b);
  return limits.contains(name) && x && y && *y > *x;
}

std::vector<Difference> differences(const Head& a, const Head& b) {
  std::vector<Difference> found;
  const auto compare = [&](const char* kind, const std::map<std::string, std::string>& of_a,
                           const std::map<std::string, std::string>& of_b) {
    auto names = of_a;
    names.insert(of_b.begin(), of_b.end());
    for (const auto& [name, ignored] : names) {
      const auto in_a = of_a.find(name), in_b = of_b.find(name);
      Difference difference{kind, name, in_a == of_a.end() ? "" : in_a->second, in_b == of_b.end() ? "" : in_b->second};
      if (difference.a != difference.b) found.push_back(difference);
    }
  };
  compare("machine", a.machine, b.machine);
  compare("version", a.versions, b.versions);
  compare("setting", a.settings, b.settings);
  return found;
}

void remove_reports(const std::filesystem::path& folder) {
  std::error_code ignored;  // what cannot be removed cannot be written, either, and writing says so
  for (const char* report : {"junit.xml", "report.html", "metrics.prom"})
    std::filesystem::remove(folder / report, ignored);
}

ResultsWriter::ResultsWriter(const std::filesystem::path& folder) : path_(folder / "results.jsonl") {
  try {
    multinode::make_folders(folder);
    if (const auto why = multinode::why_not_own(folder); !why.empty())
      throw multinode::UsageError("-o " + folder.string() + ": " + why);
    folder_ = std::make_shared<multinode::Descriptor>(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (*folder_ && flock(folder_->get(), LOCK_EX | LOCK_NB) != 0)
      throw multinode::UsageError("-o: another image-check is writing to " + folder.string() + ": name another folder");
    remove_reports(folder);
    file_ = multinode::create_new(path_);
  } catch (const std::system_error& why) {
    throw multinode::UsageError(std::string("-o: ") + why.what());
  }
}

void ResultsWriter::write(const std::variant<Head, CheckResult, Sample, Fact, Difference, Comparison, Summary>& line) {
  constexpr std::array kinds{"head", "check", "sample", "fact", "difference", "comparison", "summary"};
  auto object = std::visit([](const auto& of_kind) { return nlohmann::json(of_kind); }, line);
  if (std::holds_alternative<Head>(line)) object["schema"] = schema;
  const auto text = multinode::json_text({{kinds[line.index()], object}, {"version", multinode::version()}});
  multinode::write_all(file_.get(), text + '\n', path_);
}

namespace {

Summary counted(const std::vector<CheckResult>& checks, bool was_killed) {
  Summary summary;
  for (const auto& check : checks) count(summary, check.status);
  conclude(summary);
  if (was_killed && summary.exit_status == multinode::exit_right) summary.exit_status = multinode::exit_untestable;
  return summary;
}

Summary checked(Summary given, const std::vector<CheckResult>& checks) {
  const auto counts = [](const Summary& of) {
    return std::array{of.passed, of.failed, of.flaky, of.skipped, of.not_run, of.exit_status};
  };
  if (!checks.empty() && counts(given) != counts(counted(checks, false)))
    throw std::runtime_error("the summary does not count its checks: the file was edited, or is of two runs");
  return given;
}

Sample checked(Sample given) {
  if (given.better != "more" && given.better != "less")
    throw std::runtime_error("better is '" + given.better + "', and must be more or less");
  if (!(std::abs(given.value) < 1e300)) throw std::runtime_error("a value is not finite");
  return given;
}

Head checked(Head given) {
  if (given.nodes.empty()) throw std::runtime_error("the run has no nodes");
  return given;
}

Comparison checked(Comparison given) {
  if (given.a.empty() || given.b.empty()) throw std::runtime_error("a comparison has no values");
  return given;
}

// Numbers that get<int>() would turn into anything.
void require_counts(const nlohmann::json& value) {
  for (const std::string name : {"schema", "processes_per_node", "launch", "passed", "failed", "flaky", "skipped",
                                 "not_run", "exit_status", "seconds"})
    if (const auto at = value.find(name); at != value.end())
      if (!(name == "seconds" ? at->is_number() : at->is_number_integer()) || *at < 0 || *at > 1'000'000'000)
        throw std::runtime_error(name + " cannot be " + multinode::printable(multinode::json_text(*at)));
}

}  // namespace

Results read_results(const std::filesystem::path& folder) {
  const auto path = folder / "results.jsonl";
  std::string text;
  try {
    text = multinode::ForeignFile(path, longest_file, multinode::Links::refused).text();
  } catch (const multinode::UsageError& error) {
    throw multinode::UsageError(error.what() + std::string("; name the folder that run -o wrote"));
  }
  Results results;
  for (std::size_t at = 0, end = 0, number = 1; at < text.size(); at = end + 1, ++number) {
    end = std::min(text.find('\n', at), text.size());
    const bool cut_off = end == text.size();  // no newline: it was being written
    const std::string_view line(text.data() + at, end - at);
    try {
      if (line.size() > longest_line) throw std::runtime_error("it is longer than 4 MiB");
      const auto object = multinode::parse_json(line);
      if (!object.is_object() || object.empty()) throw std::runtime_error("it is not an object with a member");
      const auto first = object.begin();  // the keys are sorted, and "version" comes after every kind
      const std::string& kind = first.key();
      const auto& value = first.value();
      require_counts(value);
      if (number == 1 && kind != "head") throw std::runtime_error("the first line is not a head");
      if (const int given = kind == "head" ? value.value("schema", schema) : schema; given != schema)
        throw std::runtime_error(
            fmt::format("its schema is {}, and this image-check reads {}: use the one that wrote it", given, schema));
      if (kind == "head")
        results.head = checked(value.get<Head>());
      else if (kind == "check")
        results.checks.push_back(with_defaults<CheckResult>(value));
      else if (kind == "sample")
        results.samples.push_back(checked(with_defaults<Sample>(value)));
      else if (kind == "fact")
        results.facts.push_back(value.get<Fact>());
      else if (kind == "difference")
        results.differences.push_back(value.get<Difference>());
      else if (kind == "comparison")
        results.comparisons.push_back(checked(value.get<Comparison>()));
      else if (kind == "summary")
        results.summary = checked(with_defaults<Summary>(value), results.checks), results.complete = true;
      else
        throw std::runtime_error("unknown kind '" + kind + "'");
    } catch (const std::exception& error) {
      if (cut_off && number > 1) break;
      throw multinode::UsageError(path.string() + ", line " + std::to_string(number) + ": " +
                                  multinode::one_line(std::string(error.what()).substr(0, 500)));
    }
  }
  if (results.head.command.empty()) throw multinode::UsageError(path.string() + " is empty");
  if (!results.complete) results.summary = counted(results.checks, true);
  return results;
}

std::vector<std::filesystem::path> sessions_in(const std::filesystem::path& folder) {
  const auto has_results = [](const std::filesystem::path& of) {
    std::error_code error;
    return std::filesystem::exists(std::filesystem::symlink_status(of / "results.jsonl", error));
  };
  if (has_results(folder)) return {folder};
  std::vector<std::filesystem::path> found;
  for (const auto& name : multinode::names_in(folder))
    if (!std::filesystem::is_symlink(folder / name) && has_results(folder / name)) found.push_back(folder / name);
  if (found.empty())
    throw multinode::UsageError("cannot read " + folder.string() +
                                ": it has no results.jsonl, and no folder in it has one; links are not followed");
  return found;
}

void write_whole(const std::filesystem::path& path, const std::string& text) {
  try {
    multinode::write_whole(path, text);
  } catch (const std::system_error& error) {
    throw multinode::UsageError(error.what());
  }
}

std::string band_name(double bytes) {
  constexpr std::array units{"B", "KiB", "MiB", "GiB"};
  std::size_t unit = 0;
  while (bytes >= 1024 && unit + 1 < units.size()) bytes /= 1024, ++unit;
  return fmt::format("{:g} {}", bytes, units[unit]);
}

}  // namespace image_check
