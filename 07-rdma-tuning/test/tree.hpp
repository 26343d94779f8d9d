// tree.hpp: a sysfs tree as text, made into a folder.
//
//   D PATH                                 a folder
//   F MODE PATH = CONTENTS                 a file; \n, \t, \\ and \xNN in its contents
//   L PATH -> TARGET                       a symbolic link
//   E MODE PATH ! ERROR                    a file that cannot be read: here a link to a folder, which stops root too
//   Z PATH COUNT                           COUNT empty slots of the GID table of the port at PATH
//   G PATH INDEX ADDRESS TYPE NET_DEVICE   a slot of it that is not; TYPE is v1, v2 or ib, or ! for an error
//   # COMMENT
//
// Folders above a path are made as needed.
#pragma once

#include <testing/temporary_folder.hpp>

#include <filesystem>
#include <string>

namespace rdma::testing {

class Tree {
 public:
  // `lines` as of add(). Without any, there is nothing but sys/ in it.
  explicit Tree(const std::string& lines = "");

  // trees/NAME.txt, or one from a real soft-RoCE device: "s1-plain" to "s8-netns-shared".
  static Tree load(const std::string& name);

  // More lines; throws std::runtime_error for one that is none of the above. What is there already is replaced.
  void add(const std::string& lines);

  std::filesystem::path sys() const { return folder_ / "sys"; }
  const std::filesystem::path& root() const { return folder_.path(); }

 private:
  void fail_to_read(const std::filesystem::path& path);
  void write_slot(const std::filesystem::path& path, const std::string& gid);

  multinode::testing::TemporaryFolder folder_;
};

}  // namespace rdma::testing
