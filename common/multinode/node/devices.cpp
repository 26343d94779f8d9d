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

std::vector<PciDevice> pci_devices(const std::filesystem::path& sysfs) {
  std::vector<PciDevice> devices;
  const std::filesystem::path bus = sysfs / "bus/pci/devices";
  for (const std::string& address : names_in(bus))
    if (!is_there(bus / address / "physfn"))
      devices.push_back({address, bus / address, read_text(bus / address / "class").value_or("").substr(0, 6),
                         read_text(bus / address / "vendor").value_or("")});
  return devices;
}

}  // namespace multinode
