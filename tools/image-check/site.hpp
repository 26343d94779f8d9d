// site.hpp: checks as data: the built-in ones (checks.json), and those of a site.
// reference.md lists the members of a site file.
#pragma once

#include "checks.hpp"
#include "results.hpp"

#include <nlohmann/json.hpp>

#include <filesystem>

namespace image_check {

struct Kind {
  std::string nodes;  // regular expression
  nlohmann::json inventory = nlohmann::json::object();
};

struct Site {
  std::vector<Check> checks;  // in the order in which they run
  std::string launcher;       // "": auto
  std::vector<Kind> kinds;
};

// What the kinds that match the node say together. Throws multinode::UsageError if there are kinds, and none matches.
nlohmann::json inventory_of(const Site& site, const std::string& node);

// The built-in checks, changed by that file; "": none. Throws multinode::UsageError, naming the file and the check.
Site read_site(const std::filesystem::path& file);

// A site file for nodes like those of these sessions: what they have, and the least that they must reach. Throws
// multinode::UsageError for a session that did not pass.
std::string site_file(const std::vector<Results>& sessions);

}  // namespace image_check
