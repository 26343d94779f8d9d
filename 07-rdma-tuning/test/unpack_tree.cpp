// Makes a folder of a sysfs tree, for rdma_tune --sysfs: unpack_tree NAME FOLDER [LINE...]. NAME is one of trees/,
// LINEs are added to it or replace what it has (see tree.hpp). FOLDER/sys is then the tree.
#include "tree.hpp"

#include <filesystem>
#include <iostream>

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc < 3) {
    std::cerr << "usage: unpack_tree NAME FOLDER [LINE...]\n";
    return 2;
  }
  try {
    rdma::testing::Tree tree = rdma::testing::Tree::load(argv[1]);
    for (int i = 3; i < argc; ++i) tree.add(argv[i]);
    const fs::path folder = fs::absolute(argv[2]);
    fs::remove_all(folder);
    fs::create_directories(folder);
    fs::copy(tree.path(), folder, fs::copy_options::recursive | fs::copy_options::copy_symlinks);
  } catch (const std::exception& e) {
    std::cerr << "unpack_tree: " << e.what() << '\n';
    return 1;
  }
}
