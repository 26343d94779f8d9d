#include "nccl_log.hpp"

#include <multinode/base/text.hpp>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>

namespace rdma {

using multinode::join;
namespace {

constexpr std::size_t longest_line = 65'536, most_warnings = 8, most_kept = 1024;

bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

void skip_blanks(std::string_view& text) { text.remove_prefix(std::min(text.find_first_not_of(' '), text.size())); }

std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [after, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(after - text.data()));
  return number;
}

// What stands before the first of `ends`; all of it where none does.
std::string_view take_until(std::string_view& text, std::string_view ends) {
  const std::string_view word = text.substr(0, text.find_first_of(ends));
  text.remove_prefix(word.size());
  return word;
}

// What stands after `mark`, anywhere in the text.
std::optional<std::string_view> after(std::string_view text, std::string_view mark) {
  const std::size_t at = text.find(mark);
  if (at == text.npos) return std::nullopt;
  return text.substr(at + mark.size());
}

// A log may be garbage: names are kept printable and short, and a set cannot grow without bound.
std::string cleaned(std::string_view text, std::size_t longest = 64) {
  std::string result(text.substr(0, longest));
  for (char& c : result)
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7f) c = '?';
  return result;
}

template <class Set>
void insert(Set& set, typename Set::value_type value) {
  if (set.size() < most_kept) set.insert(std::move(value));
}

bool is_plugin_over_tcp(std::string_view network) {
  return network == "Socket" || network.find("TCP") != network.npos || network == "FasTrak";
}

// "[0]mlx5_0:1/RoCE [1]mlx5_1:1/IB/SHARP [RO]; OOB eth0:10.0.0.1<0>", and "[2]={[0] mlx5_0:1/RoCE, [1] ..." of merged
// NICs.
void read_hcas(std::string_view text, NcclLog& log) {
  while (!text.empty()) {
    std::string_view word = take_until(text, " ,;{}=");
    text.remove_prefix(std::min<std::size_t>(1, text.size()));
    if (take(word, "[")) {
      if (!take_number(word) || !take(word, "]")) continue;  // [RO]
    }
    const std::string device = cleaned(take_until(word, ":"));
    if (device.empty() || !take(word, ":")) continue;
    const auto port = take_number(word);
    if (!port || !take(word, "/")) continue;
    insert(log.hcas, device + ":" + std::to_string(*port) + "/" + cleaned(take_until(word, "/")));
  }
}

// What follows " via ": "NET/IB/0(8)/GDRDMA/Shared", "NET/AWS Libfabric/3", "P2P/IPC/read", "P2P/direct pointer",
// "SHM/direct/direct", "COLLNET/SHARP/0", "direct shared memory" (before 2.12).
void read_transport(std::string_view text, NcclLog& log) {
  text = text.substr(0, text.find_last_not_of(" \r\n") + 1);
  const bool collnet = take(text, "COLLNET/");
  std::string transport;
  bool gpu_direct = false;
  if (collnet || take(text, "NET/")) {
    const auto network = take_until(text, "/");
    if (network.empty()) return;
    transport = (collnet ? "COLLNET/" : "NET/") + cleaned(network);
    gpu_direct = text.find("/GDRDMA") != text.npos;
  } else if (take(text, "P2P/")) {
    transport = "P2P/" + cleaned(take_until(text, "/"));
  } else if (take(text, "SHM/")) {
    transport = "SHM/" + cleaned(take_until(text, "/"));
  } else if (text.find("shared memory") != text.npos) {
    transport = "SHM/direct";
  } else {
    return;
  }
  if (!log.connections.contains(transport) && log.connections.size() >= most_kept) return;
  ++log.connections[transport];
  log.gpu_direct += gpu_direct;
}

// Sum over the connections whose network (what follows NET/ or COLLNET/) is TCP, or RDMA.
int sum_of(const NcclLog& log, bool tcp) {
  int sum = 0;
  for (const auto& [transport, connections] : log.connections) {
    std::string_view name = transport;
    if ((take(name, "NET/") || take(name, "COLLNET/")) && is_plugin_over_tcp(name) == tcp) sum += connections;
  }
  return sum;
}

}  // namespace

void NcclLog::add_line(std::string_view line) {
  line = line.substr(0, longest_line);
  while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);

  // Printed by rank 0 alone, with no prefix up to 2.26.
  if (auto version = after(line, "NCCL version ")) {
    ++lines;
    if (const auto number = take_until(*version, " ,"); !number.empty() && number[0] >= '0' && number[0] <= '9')
      insert(versions, cleaned(number));
    return;
  }
  if (auto warning = after(line, "NCCL WARN ")) {
    ++lines;
    const std::string text = cleaned(*warning, 200);
    if (warnings.size() < most_warnings && std::find(warnings.begin(), warnings.end(), text) == warnings.end())
      warnings.push_back(text);
    return;
  }
  auto info = after(line, "NCCL INFO ");
  if (!info) return;
  ++lines;
  std::string_view text = *info;
  if (take(text, "NET/IB")) {
    // "NET/IB : Using", "NET/IB: NCCL Dev": the blank before the colon comes and goes with the version.
    skip_blanks(text);
    if (!take(text, ":")) return;
    skip_blanks(text);
    if (take(text, "Using")) {
      read_hcas(text, *this);
    } else if (text.starts_with("No device found")) {
      no_ib_device = true;
    } else if (auto gid = after(text, " GID "); gid && text.find(" qpn ") != text.npos) {
      if (const auto index = take_number(*gid)) insert(gid_indices, *index);
    }
  } else if (take(text, "Using network ")) {
    if (!text.empty()) insert(networks, cleaned(text.substr(0, text.find_last_not_of(" \t\n\r") + 1)));
  } else if (text.starts_with("Channel ") || text.starts_with("Ring ") || text.starts_with("CollNet ")) {
    if (const auto transport = after(text, " via ")) read_transport(*transport, *this);
  }
}

int NcclLog::over_rdma() const { return sum_of(*this, false); }
int NcclLog::over_tcp() const { return sum_of(*this, true); }

std::set<std::string> NcclLog::devices() const {
  std::set<std::string> names;
  for (const std::string& hca : hcas) names.insert(hca.substr(0, hca.find(':')));
  return names;
}

nlohmann::json NcclLog::json() const {
  return {{"lines", lines},
          {"versions", versions},
          {"networks", networks},
          {"hcas", hcas},
          {"connections", connections},
          {"gpu_direct", gpu_direct},
          {"gid_indices", gid_indices},
          {"no_ib_device", no_ib_device},
          {"warnings", warnings}};
}

std::vector<std::string> summary(const NcclLog& log) {
  std::vector<std::string> lines;
  if (!log.lines) return lines;
  if (!log.versions.empty()) lines.push_back("NCCL " + join(log.versions));
  if (!log.networks.empty()) lines.push_back("network " + join(log.networks));
  if (log.no_ib_device) lines.push_back("NET/IB found no device: NCCL goes over TCP");
  if (!log.hcas.empty()) lines.push_back("HCAs " + join(log.hcas));
  if (!log.gid_indices.empty()) lines.push_back("GID index " + join(log.gid_indices));
  for (const auto& [transport, count] : log.connections)
    lines.push_back("via " + transport + ": " + std::to_string(count) + " connections");
  if (const int rdma = log.over_rdma())
    lines.push_back("GPUDirect RDMA: " + std::to_string(log.gpu_direct) + " of " + std::to_string(rdma) +
                    (log.gpu_direct ? "" : ": data passes through host memory; see rdma_tune check"));
  for (const std::string& warning : log.warnings) lines.push_back("WARN " + warning);
  return lines;
}

void NcclLogStream::add(std::string_view piece) {
  while (!piece.empty()) {
    const std::size_t newline = piece.find('\n');
    const std::string_view part = piece.substr(0, newline);
    line_.append(part.substr(0, longest_line - std::min(longest_line, line_.size())));
    if (newline == piece.npos) return;
    end();
    piece.remove_prefix(newline + 1);
  }
}

void NcclLogStream::end() {
  if (!line_.empty()) log_.add_line(line_);
  line_.clear();
}

NcclLog read_nccl_log(std::istream& in) {
  NcclLog log;
  NcclLogStream stream(log);
  std::array<char, 65'536> buffer{};
  while (in.read(buffer.data(), buffer.size()), in.gcount() > 0)
    stream.add({buffer.data(), static_cast<std::size_t>(in.gcount())});
  stream.end();
  return log;
}

}  // namespace rdma
