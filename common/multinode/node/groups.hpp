// groups.hpp: which of many nodes or ranks differ from the others?
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace multinode {

struct Group {
  std::string value;
  std::vector<int> members;  // ascending
};

// The members 0, 1, ... that have the same value, the largest group first. Without a value, a member is in no group.
// One group: all are equal.
inline std::vector<Group> groups_of(const std::vector<std::optional<std::string>>& values) {
  std::vector<Group> groups;
  for (std::size_t member = 0; member < values.size(); ++member) {
    if (!values[member]) continue;
    auto group = std::ranges::find(groups, *values[member], &Group::value);
    if (group == groups.end()) group = groups.insert(groups.end(), {*values[member], {}});
    group->members.push_back(static_cast<int>(member));
  }
  std::ranges::stable_sort(groups, std::greater(), [](const Group& group) { return group.members.size(); });
  return groups;
}

}  // namespace multinode
