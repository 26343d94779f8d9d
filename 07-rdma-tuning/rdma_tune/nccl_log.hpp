// nccl_log.hpp: what NCCL_DEBUG=INFO lines say of the network: which library, HCAs, GIDs, and what each channel runs
// over.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include <istream>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace rdma {

// Of one log, which may be that of many ranks, prefixed by any launcher.
struct NcclLog {
  int lines = 0;                           // NCCL's own
  std::set<std::string> versions;          // "2.28.9+cuda13.0"
  std::set<std::string> networks;          // "Using network ...": "IB", "Socket", "AWS Libfabric"
  std::set<std::string> hcas;              // "NET/IB : Using ...": "mlx5_0:1/RoCE", "mlx5_1:1/IB"
  std::map<std::string, int> connections;  // lines "Channel ... via NET/IB/0", by "NET/IB", "P2P/CUMEM", "SHM/direct"
  int gpu_direct = 0;                      // those NET connections that end in /GDRDMA
  std::set<int> gid_indices;               // of queue pairs (NCCL_DEBUG_SUBSYS with NET)
  bool no_ib_device = false;               // NET/IB : No device found.
  std::vector<std::string> warnings;       // the first few of NCCL WARN, each once

  // Any line; those that are not NCCL's are passed over.
  void add_line(std::string_view line);

  int over_rdma() const;  // connections by a network that is RDMA
  int over_tcp() const;   // NET/Socket, and plugins known to be TCP
  std::set<std::string> devices() const;
  nlohmann::json json() const;
};

// What the log says of the network, a line each; empty: it has no line of NCCL's.
std::vector<std::string> summary(const NcclLog& log);

// Lines are cut at 64 KiB, so that a file that is no log does no harm.
NcclLog read_nccl_log(std::istream& in);

// Text that comes in pieces: feeds whole lines to a log.
class NcclLogStream {
 public:
  explicit NcclLogStream(NcclLog& log) : log_(log) {}
  void add(std::string_view piece);
  void end();  // the last line may lack its newline

 private:
  NcclLog& log_;
  std::string line_;
};

}  // namespace rdma
