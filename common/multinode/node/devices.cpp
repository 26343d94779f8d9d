// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/files.hpp>
#include <multinode/node/devices.hpp>

#include <algorithm>
#include <sstream>

namespace multinode {

namespace {

// File names below a port's folder.
constexpr struct {
  Trouble kind;
  const char *folder, *files;
} counters[] = {
    {Trouble::loss, "hw_counters",
     "out_of_sequence packet_seq_err local_ack_timeout_err implied_nak_seq_err rnr_nak_retry_err "     // mlx5
     "out_of_seq_request rcvd_seq_err completer_retry_err retry_exceeded_err retry_rnr_exceeded_err "  // rxe
     "oos_drop_count seq_err_naks_rcvd to_retransmits max_retry_exceeded rx_roce_discards "            // bnxt_re
     "tcpRetransSegs RetransSegs ip4InDiscards "                                                       // irdma
     "retrans_pkts rx_drops requester_timeout responder_oos requester_retries_exceeded"},              // efa, mana
    {Trouble::congestion, "hw_counters",
     "np_ecn_marked_roce_packets np_cnp_sent rp_cnp_handled RxECNMrkd cnpHandled received_cnps"},
    {Trouble::congestion, "counters", "port_xmit_wait"},
    {Trouble::link, "counters", "symbol_error link_error_recovery link_downed port_rcv_errors"},
    {Trouble::error, "counters",
     "port_rcv_remote_physical_errors port_xmit_discards port_rcv_constraint_errors port_xmit_constraint_errors"},
    {Trouble::link, "counters", "local_link_integrity_errors excessive_buffer_overrun_errors"},
    {Trouble::error, "hw_counters", "link_downed rx_icrc_encapsulated rx_roce_errors unrecoverable_err"},
};

// "4: ACTIVE" -> "ACTIVE"
std::optional<std::string> after_colon(std::optional<std::string> text) {
  if (const std::size_t colon = text ? text->find(": ") : std::string::npos; colon != std::string::npos)
    text->erase(0, colon + 2);
  return text;
}

}  // namespace

std::vector<RdmaPort> rdma_ports(const std::filesystem::path& sysfs) {
  std::vector<RdmaPort> ports;
  const std::filesystem::path devices = sysfs / "class/infiniband";
  for (const std::string& device : names_in(devices))
    for (const std::string& number : names_in(devices / device / "ports")) {
      const std::filesystem::path folder = devices / device / "ports" / number;
      ports.push_back({device, number, folder, after_colon(read_text(folder / "state")), read_text(folder / "rate"),
                       read_text(folder / "link_layer")});
    }
  return ports;
}

std::vector<TroubleCount> trouble_counts(const std::filesystem::path& port_folder,
                                         std::initializer_list<Trouble> kinds) {
  std::vector<TroubleCount> found;
  for (const auto& source : counters) {
    if (std::find(kinds.begin(), kinds.end(), source.kind) == kinds.end()) continue;
    std::istringstream files(source.files);
    for (std::string file; files >> file;)
      if (const auto value = read_number<std::uint64_t>(port_folder / source.folder / file))
        found.push_back({file, *value});
  }
  return found;
}

std::vector<Interface> interfaces(const std::filesystem::path& sysfs,
                                  std::map<std::string, std::vector<std::string>> addresses) {
  const std::filesystem::path folder = sysfs / "class/net";
  for (const std::string& name : names_in(folder))
    if (is_there(folder / name / "mtu")) addresses[name];  // bonding_masters is a file
  std::vector<Interface> found;
  for (auto& [name, of_it] : addresses) {
    auto speed = read_number<long long>(folder / name / "speed");
    if (speed == -1) speed.reset();
    found.push_back({name, read_text(folder / name / "operstate"), speed, read_number<long long>(folder / name / "mtu"),
                     std::move(of_it)});
  }
  return found;
}

Gpus gpus_of_driver(const std::filesystem::path& root) {
  Gpus gpus{"NVIDIA's driver"};
  const std::filesystem::path folder = root / "proc/driver/nvidia/gpus";
  for (const std::string& pci : names_in(folder)) {
    Gpu& gpu = gpus.devices.emplace_back(Gpu{pci});
    std::istringstream lines(read_text(folder / pci / "information").value_or(""));
    for (std::string line; std::getline(lines, line);) {
      const std::size_t colon = line.find(':'), value = line.find_first_not_of(" \t", colon + 1);
      if (colon == line.npos || value == line.npos) continue;
      if (line.starts_with("Model")) gpu.name = line.substr(value);
      if (line.starts_with("GPU UUID")) gpu.uuid = line.substr(value);
    }
  }
  return gpus;
}

std::optional<std::string> nvidia_driver(const std::filesystem::path& root) {
  const std::optional<std::string> text = read_text(root / "proc/driver/nvidia/version");
  if (!text) return std::nullopt;
  // NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023
  std::istringstream words(*text);
  for (std::string word; words >> word;)
    if (word.find_first_not_of("0123456789.") == word.npos && word.find('.', 1) < word.size() - 1) return word;
  return "unknown";
}

}  // namespace multinode
