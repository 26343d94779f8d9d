#include "tree.hpp"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <stdexcept>

namespace rdma::testing {

namespace fs = std::filesystem;

namespace {

std::string unescaped(const std::string& text) {
  std::string result;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\' || i + 1 == text.size()) {
      result += text[i];
      continue;
    }
    const char c = text[++i];
    if (c == 'x' && i + 2 < text.size()) {
      result += static_cast<char>(std::stoi(text.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      result += c == 'n' ? '\n' : c == 't' ? '\t' : c;
    }
  }
  return result;
}

void make_room(const fs::path& path) {
  fs::create_directories(path.parent_path());
  if (fs::symlink_status(path).type() != fs::file_type::not_found) fs::remove_all(path);
}

void write(const fs::path& path, const std::string& contents) {
  make_room(path);
  std::ofstream file(path, std::ios::binary);
  file << contents;
  if (!file.flush()) throw std::runtime_error("cannot write " + path.string());
}

constexpr const char* empty_slot = "0000:0000:0000:0000:0000:0000:0000:0000\n";

// In memory where there is room: a tree has thousands of files.
fs::path parent_of_trees() {
  std::error_code error;
  const fs::path memory = "/dev/shm";
  const bool has_room = fs::space(memory, error).available > (64U << 20);
  return !error && has_room && access(memory.c_str(), W_OK) == 0 ? memory : fs::temp_directory_path();
}

}  // namespace

Tree::Tree(const std::string& lines) : folder_(parent_of_trees()) {
  fs::create_directory(sys());
  fs::create_directory(folder_ / "unreadable");
  write(folder_ / "empty slot", empty_slot);
  add(lines);
}

void Tree::fail_to_read(const fs::path& path) {
  make_room(path);
  fs::create_symlink(folder_ / "unreadable", path);
}

void Tree::write_slot(const fs::path& path, const std::string& gid) {
  if (gid != empty_slot) return write(path, gid);
  make_room(path);
  fs::create_hard_link(folder_ / "empty slot", path);
}

Tree Tree::load(const std::string& name) {
  fs::path path = fs::path(RDMA_TREES) / (name + ".txt");
  if (!fs::exists(path)) path = fs::path(RDMA_FIXTURES) / (name + ".txt");
  if (!fs::exists(path)) throw std::runtime_error("no tree named " + name);
  return Tree(multinode::testing::text_of(path));
}

void Tree::add(const std::string& lines) {
  std::istringstream stream(lines);
  for (std::string line; std::getline(stream, line);) {
    const auto broken = [&](const std::string& separator) {
      const std::size_t at = line.find(separator);
      if (at == line.npos) throw std::runtime_error("not a line of a tree: " + line);
      return at;
    };
    const auto path_from = [&](std::size_t from, std::size_t to) {
      return folder_ / fs::path(line.substr(from, to - from)).relative_path();
    };
    const std::string kind = line.substr(0, 2);
    std::istringstream words(line.size() > 2 ? line.substr(2) : "");
    if (line.empty() || line[0] == '#') {
      continue;
    } else if (kind == "D ") {
      fs::create_directories(path_from(2, line.size()));
    } else if (kind == "L ") {
      const std::size_t at = broken(" -> ");
      const fs::path path = path_from(2, at);
      make_room(path);
      fs::create_symlink(line.substr(at + 4), path);
    } else if (kind == "F ") {
      const std::size_t from = line.find(' ', 2) + 1, at = broken(" = ");
      write_slot(path_from(from, at), unescaped(line.substr(at + 3)));
    } else if (kind == "E ") {
      const std::size_t from = line.find(' ', 2) + 1, at = broken(" ! ");
      fail_to_read(path_from(from, at));
    } else if (kind == "Z ") {
      std::string port;
      int count = -1;
      if (!(words >> port >> count)) throw std::runtime_error("not a line of a tree: " + line);
      const fs::path folder = folder_ / fs::path(port).relative_path();
      for (int i = 0; i < count; ++i) {
        write_slot(folder / "gids" / std::to_string(i), empty_slot);
        fail_to_read(folder / "gid_attrs/types" / std::to_string(i));
        fail_to_read(folder / "gid_attrs/ndevs" / std::to_string(i));
      }
    } else if (kind == "G ") {
      std::string port, index, address, type, net;
      if (!(words >> port >> index >> address >> type >> net))
        throw std::runtime_error("not a line of a tree: " + line);
      const fs::path folder = folder_ / fs::path(port).relative_path();
      write(folder / "gids" / index, address + "\n");
      if (type == "!")
        fail_to_read(folder / "gid_attrs/types" / index);
      else
        write(folder / "gid_attrs/types" / index, type == "v2" ? "RoCE v2\n" : "IB/RoCE v1\n");
      if (net == "!")
        fail_to_read(folder / "gid_attrs/ndevs" / index);
      else
        write(folder / "gid_attrs/ndevs" / index, net + "\n");
    } else if (line != "bonding_masters" && line != "lo") {  // s8-netns-shared: a list of its interfaces
      throw std::runtime_error("not a line of a tree: " + line);
    }
  }
}

}  // namespace rdma::testing
