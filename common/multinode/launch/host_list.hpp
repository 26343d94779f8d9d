// host_list.hpp: lists of hosts and of counts in Slurm's notation.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace multinode {

inline constexpr std::size_t max_hosts = 65'536;
inline constexpr std::size_t max_host_name = 255;  // characters, in DNS

// A letter, a digit, '-', '_' or '.'.
bool is_host_character(char c);

// At most max_host_name such characters; the first one is not '-', because ssh would read an option.
bool is_host_name(std::string_view text);

// "gpu[1-3,07-08],login" -> gpu1 gpu2 gpu3 gpu07 gpu08 login. Throws UsageError if `text` is not such a list, or names
// more than max_hosts hosts.
std::vector<std::string> expand_host_list(std::string_view text);

// The hosts in a scheduler's file of at most 16 MiB, one per line and process slot. Throws UsageError.
std::vector<std::string> hosts_in_file(const std::filesystem::path& file);

// "2(x3),1" -> 2 2 2 1 (SLURM_STEP_TASKS_PER_NODE). Throws UsageError.
std::vector<int> expand_tasks_per_node(std::string_view text);

}  // namespace multinode
