#include "explore/probes.hpp"

#include <nlohmann/json.hpp>

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <sstream>

namespace explore {

namespace {

struct Answer {
  std::string found, problem;  // one of them is ""
};

Answer find_file(const std::string& name) {
  if (access(name.c_str(), R_OK) == 0) return {name, ""};
  return {"", std::strerror(errno)};
}

bool runs(const std::string& file) {
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0;
}

Answer find_command(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos) return runs(name) ? Answer{name, ""} : Answer{"", "no such program"};
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (runs(file)) return {file, ""};
  }
  return {"", "not on the PATH"};
}

Answer find_library(const std::string& name) {
  if (void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL)) {
    dlclose(library);
    return {name, ""};
  }
  std::string problem = dlerror();
  if (problem.starts_with(name + ": ")) problem.erase(0, name.size() + 2);
  return {"", problem};
}

}  // namespace

nlohmann::json find_required(const Required& required, const std::string& path) {
  nlohmann::json all = nlohmann::json::array();
  const auto text = [](const std::string& s) { return s.empty() ? nlohmann::json() : nlohmann::json(s); };
  const auto add = [&](const char* kind, const std::string& name, const Answer& answer) {
    all.push_back({{"kind", kind}, {"name", name}, {"found", text(answer.found)}, {"problem", text(answer.problem)}});
  };
  for (const std::string& name : required.files) add("file", name, find_file(name));
  for (const std::string& name : required.commands) add("command", name, find_command(name, path));
  for (const std::string& name : required.libraries) add("library", name, find_library(name));
  return all;
}

}  // namespace explore
