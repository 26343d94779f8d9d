// tree.hpp: a sysfs tree in a folder that is removed with its object.
#pragma once

#include "unpack_tree/unpack.hpp"

#include <unistd.h>
#include <test/support/temporary_folder.hpp>

#include <filesystem>
#include <string>

namespace rdma::testing {

// In memory where there is room: a tree has thousands of files.
inline std::filesystem::path parent_of_trees() {
  std::error_code error;
  const std::filesystem::path memory = "/dev/shm";
  const bool has_room = std::filesystem::space(memory, error).available > (64U << 20);
  return !error && has_room && access(memory.c_str(), W_OK) == 0 ? memory : std::filesystem::temp_directory_path();
}

class Tree : public multinode::testing::TemporaryFolder {
 public:
  // `lines` as of unpack(). Without any, there is nothing but sys/ in it.
  explicit Tree(const std::string& lines = "") : TemporaryFolder(parent_of_trees()) { add("D /sys\n" + lines); }
  static Tree load(const std::string& name) { return Tree("include " + name); }

  void add(const std::string& lines) { unpack(lines, path()); }
  std::filesystem::path sys() const { return *this / "sys"; }
};

}  // namespace rdma::testing
