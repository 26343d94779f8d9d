// verify.hpp: did the traffic of a command go over RDMA? The counters before and after it say so.
#pragma once

#include "counters.hpp"

#include <string>
#include <vector>

namespace rdma {

enum class Carrier { rdma, tcp, mixed, no_traffic, cannot_tell };
std::string text_of(Carrier verdict);  // "rdma", "tcp", "mixed", "no traffic", "cannot tell"

// What one counter moved while the command ran, less what it moves while the machine is idle.
struct Moved {
  std::string name;  // "mlx5_0:1", "eth0"
  bool rdma = false;
  CounterUnit unit = CounterUnit::bytes;
  double sent = 0, received = 0;
  double idle_per_second = 0;  // sent and received
  std::string source = "";
  std::string problem = "";  // why the figures mean nothing: "no counters", "went backwards", ...
  double sum() const { return sent + received; }
};

struct Assessment {
  Carrier verdict = Carrier::cannot_tell;
  std::vector<std::string> reasons;
  std::vector<Moved> rdma, net;
  double rdma_bytes = 0;  // an upper bound where a device counts packets alone
  double tcp_bytes = 0;   // of net devices, less what is RDMA's
};

// `idle`, `before`, `after`: readings at the start, when the command starts, and when it has ended.
Assessment assess(const Counters& idle, const Counters& before, const Counters& after);

}  // namespace rdma
