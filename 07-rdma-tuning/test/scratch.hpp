// scratch.hpp: a folder for a test's made-up sysfs, gone at the end.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>

namespace rdma::testing {

class Scratch {
 public:
  Scratch() {
    std::string name = (std::filesystem::temp_directory_path() / "rdma_tune.XXXXXX").string();
    if (!::mkdtemp(name.data())) throw std::runtime_error("cannot make " + name);
    path_ = name;
  }
  ~Scratch() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  const std::filesystem::path& path() const { return path_; }
  std::string file(const std::string& name) const { return (path_ / name).string(); }

  // Makes the folders too; a newline is added, as sysfs has it.
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream out(path_ / name, std::ios::trunc | std::ios::binary);
    out << text << '\n';
    if (!out.flush()) throw std::runtime_error("cannot write " + name);
  }
  void link(const std::string& name, const std::string& target) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::filesystem::create_symlink(target, path_ / name);
  }
  void folder(const std::string& name) const { std::filesystem::create_directories(path_ / name); }
  void remove(const std::string& name) const { std::filesystem::remove_all(path_ / name); }

 private:
  std::filesystem::path path_;
};

}  // namespace rdma::testing
