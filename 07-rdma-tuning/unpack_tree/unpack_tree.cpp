// Makes a folder of a recorded node, for rdma_tune --sysfs: unpack_tree NAME FOLDER [LINE...]. NAME is one of trees/,
// LINEs are added to it or replace what it has (see unpack.hpp). FOLDER/sys is then what /sys was on that node.
#include "unpack_tree/unpack.hpp"

#include <filesystem>
#include <iostream>

int main(int argc, char** argv) {
  namespace fs = std::filesystem;
  if (argc < 3) {
    std::cerr << "usage: unpack_tree NAME FOLDER [LINE...]\n";
    return 2;
  }
  try {
    std::string lines = std::string("include ") + argv[1];
    for (int i = 3; i < argc; ++i) lines += std::string("\n") + argv[i];
    fs::remove_all(argv[2]);
    fs::create_directories(argv[2]);
    rdma::unpack(lines, fs::absolute(argv[2]));
  } catch (const std::exception& e) {
    std::cerr << "unpack_tree: " << e.what() << '\n';
    return 1;
  }
}
