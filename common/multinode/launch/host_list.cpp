// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/text.hpp>
#include <multinode/launch/host_list.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <sstream>

namespace multinode {
namespace {

// The items of a list separated by commas; "" has one, which is empty.
std::vector<std::string_view> split(std::string_view text) {
  std::vector<std::string_view> items;
  for (std::size_t at = 0; at <= text.size(); at += items.back().size() + 1)
    items.push_back(text.substr(at, std::min(text.find(',', at), text.size()) - at));
  return items;
}

UsageError bad_host_list(std::string_view text, std::string_view why) {
  return UsageError(fmt::format("'{}' is not a host list like gpu[1-3,07],login: {}", printable(text), why));
}

// "1-3,07", of the brackets in `whole`: the numbers that it stands for, at most `room`.
std::vector<std::string> expand_ranges(std::string_view ranges, std::string_view whole, std::size_t room) {
  std::vector<std::string> result;
  for (const std::string_view range : split(ranges)) {
    const std::size_t dash = range.find('-');
    const std::string_view low = range.substr(0, dash);
    const std::string_view high = dash == range.npos ? low : range.substr(dash + 1);
    const auto first = parse_decimal<std::uint32_t>(low), last = parse_decimal<std::uint32_t>(high);
    const auto bad = [&](const char* why) {
      return bad_host_list(whole, fmt::format("'{}' {}", printable(range), why));
    };
    if (!first || !last || low.size() > 9 || high.size() > 9) throw bad("is not a range");
    if (*last < *first) throw bad("counts down");
    if (low.size() > 1 && low.front() == '0' && low.size() != high.size()) throw bad("has ends of different length");
    if (*last - *first >= room - result.size()) throw bad_host_list(whole, "it names more than 65536 hosts");
    for (std::uint32_t i = *first; i <= *last; ++i) result.push_back(fmt::format("{:0{}}", i, low.size()));
  }
  return result;
}

}  // namespace

bool is_host_character(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' || c == '.';
}

bool is_host_name(std::string_view text) {
  return !text.empty() && text.size() <= max_host_name && text.front() != '-' &&
         std::ranges::all_of(text, is_host_character);
}

std::vector<std::string> expand_host_list(std::string_view text) {
  std::vector<std::string> hosts;
  std::vector<std::string> item = {""};  // the hosts of the item being read, as far as it is read
  std::size_t length = 0;                // of the longest of them
  for (std::size_t at = 0;; ++at) {
    const char c = at < text.size() ? text[at] : ',';
    if (c == ',') {
      if (length == 0) throw bad_host_list(text, "a name is empty");
      if (item.front().starts_with('-')) throw bad_host_list(text, "a name begins with '-'");
      if (hosts.size() + item.size() > max_hosts) throw bad_host_list(text, "it names more than 65536 hosts");
      std::move(item.begin(), item.end(), std::back_inserter(hosts));
      item = {""};
      length = 0;
      if (at >= text.size()) return hosts;
    } else if (c == '[') {
      const std::size_t close = text.find(']', at);
      if (close == text.npos) throw bad_host_list(text, "a bracket is not closed");
      const auto numbers = expand_ranges(text.substr(at + 1, close - at - 1), text, max_hosts / item.size());
      std::vector<std::string> product;
      product.reserve(item.size() * numbers.size());
      for (const std::string& prefix : item)
        for (const std::string& number : numbers) product.push_back(prefix + number);
      item = std::move(product);
      length += 9;
      at = close;
    } else if (is_host_character(c)) {
      for (std::string& host : item) host += c;
      ++length;
    } else {
      throw bad_host_list(text, fmt::format("it contains '{}'", printable({&c, 1})));
    }
    if (length > max_host_name) throw bad_host_list(text, "a name is longer than 255 characters");
  }
}

std::vector<std::string> hosts_in_file(const std::filesystem::path& file) {
  std::istringstream lines(ForeignFile(file, 16 << 20, Links::followed).text());  // 65,536 lines of 255
  std::vector<std::string> hosts;
  for (std::string line; std::getline(lines, line);) {
    line.erase(line.find_last_not_of(" \r") + 1);
    if (line.empty()) continue;
    if (!is_host_name(line) || hosts.size() == max_hosts)
      throw UsageError(
          fmt::format("{} must name at most 65536 hosts, one per line, not '{}'", file.string(), printable(line)));
    hosts.push_back(line);
  }
  if (hosts.empty()) throw UsageError(file.string() + " names no host: name a file with one host per line");
  return hosts;
}

std::vector<int> expand_tasks_per_node(std::string_view text) {
  std::vector<int> tasks;
  for (std::string_view item : split(text)) {
    std::optional<std::size_t> repeat = 1;
    if (const std::size_t open = item.find("(x"); open != item.npos && item.ends_with(')')) {
      repeat = parse_decimal<std::size_t>(item.substr(open + 2, item.size() - open - 3));
      item = item.substr(0, open);
    }
    const auto count = parse_decimal<int>(item);
    if (!count || *count < 1 || !repeat || *repeat < 1 || *repeat > max_hosts - tasks.size())
      throw UsageError(fmt::format("'{}' is not a list of tasks per node like 2(x3),1", printable(text)));
    tasks.insert(tasks.end(), *repeat, *count);
  }
  return tasks;
}

}  // namespace multinode
