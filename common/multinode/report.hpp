// report.hpp: results: a table for people, JSON lines for machines.
#pragma once

#include <multinode/world.hpp>

#include <nlohmann/json_fwd.hpp>

#include <fstream>
#include <ostream>
#include <string>
#include <vector>

namespace multinode {

// Aligned columns: text to the left, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head);
  void add(std::vector<std::string> row);  // as many cells as the head has
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// One JSON object a line. An empty path writes nothing. Throws UsageError for a file that cannot be written, on
// opening; and std::runtime_error for a line that could not be (a full disk).
class JsonLines {
 public:
  // `append`: behind what is in the file, for a program that goes on where it was stopped.
  explicit JsonLines(const std::string& path, bool append = false);
  void write(const nlohmann::json& object);

 private:
  std::string path_;
  std::ofstream file_;
};

// Where and with what a result was made: {"fingerprint": {program, host, launcher, world_size, nodes, versions,
// time}}, and "gpu" where the GPUs are stand-ins. Never the environment itself: it can hold secrets.
nlohmann::json fingerprint(const World& world);

}  // namespace multinode
