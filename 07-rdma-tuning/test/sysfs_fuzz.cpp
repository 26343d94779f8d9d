// Fuzzes what reads sysfs: any file of a small tree may hold anything, be a folder, a loop of links, a FIFO, or
// missing. Whatever it is, every reader, choice, table and export must hold together.
#include "tree.hpp"

#include "rdma_tune/choice.hpp"
#include "rdma_tune/exports.hpp"
#include "rdma_tune/simulate.hpp"
#include "rdma_tune/system.hpp"
#include "rdma_tune/table.hpp"

#include <multinode/base/check.hpp>

#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>

namespace {

namespace fs = std::filesystem;

void require(bool holds) {
  if (!holds) std::abort();
}

bool is_printable(const std::string& text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

class Files {
 public:
  Files() {
    tree_.add(R"(card pci0000:3a/0000:3a:00.0/0000:3b:00.0 0 mlx5_0 Ethernet eth0 4 100 Gb/sec (4X EDR)
addresses mlx5_0 eth0 0 fe80::5054:ff:fe00:3 10.1.0.5 fd00:77::1
card pci0000:3a/0000:3a:01.0/0000:3c:00.0 0 ib_1 InfiniBand ib0 1 400 Gb/sec (4X NDR)
G /sys/class/infiniband/ib_1/ports/1 0 fe80::5054:ff:fe00:3 ib !
gpu pci0000:3a/0000:3a:00.0/0000:3d:00.0 1
F 444 /sys/class/net/eth0/uevent = DEVTYPE=vlan
F 444 /proc/net/vlan/eth0 = VID: 100
F 444 /proc/net/route = Iface\tDest\neth0\t00000000\t0\t3\t0\t0\t100\t00000000
)");
    for (const auto& entry : fs::recursive_directory_iterator(tree_.path()))
      if (entry.is_regular_file() && entry.path().filename() != "empty slot") paths_.push_back(entry.path());
    std::ranges::sort(paths_);
    for (const fs::path& path : paths_) contents_[path] = multinode::testing::text_of(path);
  }

  const rdma::testing::Tree& tree() const { return tree_; }

  // `what` is 250 to 253: no file; below 128: these contents; else: its own, with these from `what` - 128 on.
  void change(std::uint8_t which, std::uint8_t what, std::string_view contents) {
    const fs::path& path = paths_[which % paths_.size()];
    changed_.push_back(path);
    fs::remove_all(path);
    switch (what) {
      case 250:
        fs::create_directory(path);
        break;
      case 251:
        fs::create_symlink(path.filename(), path);
        break;
      case 252:
        break;
      case 253:
        require(mkfifo(path.c_str(), 0600) == 0);
        break;
      default:
        if (what < 128) {
          write(path, contents);
        } else {
          std::string text = contents_.at(path);
          const std::size_t from = std::min<std::size_t>(what - 128, text.size());
          write(path, text.replace(from, contents.size(), contents));
        }
    }
  }

  void restore() {
    for (const fs::path& path : changed_) {
      fs::remove_all(path);
      write(path, contents_.at(path));
    }
    changed_.clear();
  }

 private:
  static void write(const fs::path& path, std::string_view contents) { std::ofstream(path) << contents; }

  rdma::testing::Tree tree_;
  std::vector<fs::path> paths_;
  std::map<fs::path, std::string> contents_;
  std::vector<fs::path> changed_;
};

void check(const rdma::System& system, const rdma::Wanted& wanted) {
  const rdma::Choice choice = rdma::choose(system, wanted);
  for (const rdma::PortChoice& port : choice.ports) {
    require(port.gids.size() == port.port->gids.size());
    require(port.usable == port.reason.empty());
    for (std::size_t i = 0; i < port.gids.size(); ++i) {
      const rdma::Gid& gid = port.port->gids[i];
      require(gid.index < port.port->slots && is_printable(gid.net_device) && !port.gids[i].reason.empty());
      require(port.gids[i].chosen == (gid.index == port.chosen));
      if (port.gids[i].chosen)
        require(!gid.is_link_local() && !gid.is_ipv4_link_local() &&
                gid.is_ipv4() == (choice.wanted.family == rdma::Family::ipv4) && gid.type == rdma::GidType::roce_v2 &&
                port.port->is_active());
    }
    for (const int minor : {20, 21, 28}) {
      const auto nccl = nccl_gid(*port.port, {2, minor, 5}, {});
      require(nccl.indices.empty() == !nccl.failure.empty() && !nccl.reason.empty());
      for (const int index : nccl.indices) require(index >= 0 && index < port.port->slots);
    }
  }
  for (const std::string& line : choice.warnings) require(is_printable(line));
  std::ostringstream out;
  rdma::print_tables(out, system, choice);
  for (const auto& nccl : {rdma::NcclVersion{2, 20}, {2, 28}}) {
    const auto all = rdma::exports(system, choice, nccl);
    for (const rdma::Export& one : all)
      require(!one.name.empty() && !one.value.empty() && is_printable(one.value) && is_printable(one.remark));
    rdma::print_exports(out, all);
  }
  require(std::ranges::all_of(out.str(), [](char c) { return c == '\n' || (c >= ' ' && c <= '~'); }));
  require(!rdma::to_json(system, choice).dump().empty());  // throws for what is not UTF-8
}

}  // namespace

// Records: which file, what becomes of it, its contents up to a zero byte.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static Files files;
  std::string_view text(reinterpret_cast<const char*>(data), size);
  for (int records = 0; text.size() >= 2 && records < 8; ++records) {
    const std::size_t end = std::min(text.find('\0', 2), text.size());
    files.change(static_cast<std::uint8_t>(text[0]), static_cast<std::uint8_t>(text[1]), text.substr(2, end - 2));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  const rdma::System system = rdma::read_system(files.tree().sys());
  for (const std::string& line : system.problems) require(is_printable(line) && line.find(": ") != line.npos);
  rdma::Wanted wanted;
  wanted.vlan = size % 2;
  check(system, wanted);
  files.restore();
  return 0;
}
