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

nlohmann::json result(const char* kind, const std::string& name, const std::string& found, const std::string& problem) {
  return {{"kind", kind},
          {"name", name},
          {"found", found.empty() ? nlohmann::json() : nlohmann::json(found)},
          {"problem", problem.empty() ? nlohmann::json() : nlohmann::json(problem)}};
}

nlohmann::json look_for_file(const std::string& name) {
  if (access(name.c_str(), R_OK) == 0) return result("file", name, name, "");
  return result("file", name, "", std::strerror(errno));
}

bool runs(const std::string& file) {
  std::error_code error;
  return std::filesystem::is_regular_file(file, error) && access(file.c_str(), X_OK) == 0;
}

nlohmann::json look_for_command(const std::string& name, const std::string& path) {
  if (name.find('/') != std::string::npos)
    return runs(name) ? result("command", name, name, "") : result("command", name, "", "no such program");
  std::istringstream folders(path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string file = (folder.empty() ? "." : folder) + "/" + name;
    if (runs(file)) return result("command", name, file, "");
  }
  return result("command", name, "", "not on the PATH");
}

nlohmann::json look_for_library(const std::string& name) {
  void* const library = dlopen(name.c_str(), RTLD_LAZY | RTLD_LOCAL);
  if (library == nullptr) {
    std::string problem = dlerror();
    if (problem.starts_with(name + ": ")) problem.erase(0, name.size() + 2);
    return result("library", name, "", problem);
  }
  dlclose(library);
  return result("library", name, name, "");
}

}  // namespace

nlohmann::json look_for(const Required& required, const std::string& path) {
  nlohmann::json all = nlohmann::json::array();
  for (const std::string& name : required.files) all.push_back(look_for_file(name));
  for (const std::string& name : required.commands) all.push_back(look_for_command(name, path));
  for (const std::string& name : required.libraries) all.push_back(look_for_library(name));
  return all;
}

}  // namespace explore
