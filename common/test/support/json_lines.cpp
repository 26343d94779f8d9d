#include <multinode/base/options.hpp>
#include <test/support/json_lines.hpp>

#include <fstream>
#include <stdexcept>
#include <string>

void nlohmann::PrintTo(const json& value, std::ostream* out) { *out << multinode::json_text(value); }

namespace multinode::testing {

std::vector<nlohmann::json> json_lines(const std::filesystem::path& file) {
  std::vector<nlohmann::json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    lines.push_back(parse_json(line));
    if (lines.back().at("version") != version()) throw std::runtime_error("another version: " + line);
    lines.back().erase("version");
  }
  return lines;
}

}  // namespace multinode::testing
