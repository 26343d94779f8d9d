// scratch.hpp: a folder for a test's made-up sysfs.
#pragma once

#include <testing/temporary_folder.hpp>

namespace rdma::testing {

struct Scratch : multinode::testing::TemporaryFolder {
  void link(const std::string& name, const std::string& target) const {
    std::filesystem::create_directories((*this / name).parent_path());
    std::filesystem::create_symlink(target, *this / name);
  }
  void folder(const std::string& name) const { std::filesystem::create_directories(*this / name); }
  void remove(const std::string& name) const { std::filesystem::remove_all(*this / name); }
};

}  // namespace rdma::testing
