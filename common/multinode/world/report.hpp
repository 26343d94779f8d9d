// report.hpp: results: a table for people, JSON lines for machines.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/world/world.hpp>

#include <nlohmann/json_fwd.hpp>

#include <ostream>
#include <string>
#include <vector>

namespace multinode {

// A table with aligned columns: text to the left, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head);
  void add(std::vector<std::string> row);  // one cell per column, or throws std::logic_error
  void print(std::ostream& out) const;

 private:
  std::vector<std::vector<std::string>> rows_;
};

// Writes one JSON object per line, with the project's "version", and flushes it; with an empty path it writes nothing.
// The constructor throws UsageError if it cannot open the file, or if a link or a pipe lies there; write() throws
// std::runtime_error if the line cannot be written (a full disk).
class JsonLines {
 public:
  // `append`: keep the contents of the file, for a program that resumes.
  explicit JsonLines(const std::string& path, bool append = false);
  void write(const nlohmann::json& object);

 private:
  std::string path_;
  Descriptor file_;
};

// Where and with which versions a result was made: {"fingerprint": {program, hosts, launcher, world_size, nodes,
// versions, time}}, and "gpu" if the GPUs are emulated. Not the environment, which can hold secrets. Not collective.
nlohmann::json fingerprint(const World& world);

}  // namespace multinode
