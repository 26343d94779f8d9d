// required.hpp: does this node have a file, a command, a library? Finds what is installed on the head node only.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

namespace explore {

struct Required {
  std::vector<std::string> files, commands, libraries;
};

// An array of {kind, name, found, problem}: found is the path (the name, for a library), or null; problem says why.
// `path` is the PATH to look for commands in. Libraries are loaded, as a program would.
nlohmann::json look_for(const Required& required, const std::string& path);

}  // namespace explore
