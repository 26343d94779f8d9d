#include "verify.hpp"

#include "commands.hpp"
#include "options.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/signals.hpp>
#include <multinode/base/text.hpp>
#include <multinode/process/child_process.hpp>
#include <multinode/world/report.hpp>

#include <fmt/core.h>

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <iostream>
#include <thread>
#include <utility>

namespace rdma {

namespace po = boost::program_options;
using namespace std::chrono_literals;
using multinode::check_errno;
using multinode::join;
using multinode::Signals;
using multinode::UsageError;

namespace {

// Below these nothing moved: an idle RDMA port counts nothing, a network interface always counts something.
constexpr double least_rdma_bytes = 4096, least_rdma_packets = 16, least_net_bytes = 65'536;
// What launchers and bootstraps send over TCP whatever the data goes over.
constexpr double control_bytes = 1 << 20;
// Ethernet header and VLAN tag, which a packet has beyond its net device's MTU.
constexpr double ethernet_header = 18;
// IPoIB's bytes as the port counts them, at most, with InfiniBand's own headers and the acknowledgements' small
// packets.
constexpr double ipoib_overhead = 1.25;

std::string bytes_text(double bytes) {
  static constexpr std::array units = {"B", "kB", "MB", "GB", "TB", "PB"};
  std::size_t unit = 0;
  while (bytes >= 999.5 && unit + 1 < units.size()) {
    bytes /= 1000;
    ++unit;
  }
  return fmt::format("{:.{}f} {}", bytes, unit && bytes < 99.95 ? 1 : 0, units[unit]);
}

std::string amount_text(const Moved& moved) {
  return moved.unit == CounterUnit::bytes ? bytes_text(moved.sum()) : fmt::format("{:.0f} packets", moved.sum());
}

const PortCount* find_port(const Counters& counters, const std::string& key) {
  const auto at = std::ranges::find(counters.ports, key, &PortCount::key);
  return at == counters.ports.end() ? nullptr : &*at;
}
const NetCount* find_net(const Counters& counters, const std::string& name) {
  const auto at = std::ranges::find(counters.net_devices, name, &NetCount::name);
  return at == counters.net_devices.end() ? nullptr : &*at;
}

// What the counter moved from `before` to `after`, less its share of what it moved from `idle` to `before`.
struct Interval {
  double idle_seconds, busy_seconds;

  double moved(std::uint64_t idle, std::uint64_t before, std::uint64_t after, Moved& into) const {
    if (before < idle || after < before) {
      into.problem = "went backwards";  // the driver was loaded anew, or the counter was cleared
      return 0;
    }
    const double rate = idle_seconds > 0 ? static_cast<double>(before - idle) / idle_seconds : 0;
    into.idle_per_second += rate;
    return std::max(0.0, static_cast<double>(after - before) - rate * busy_seconds);
  }

  // More than nothing, and not only the usual traffic's own variation.
  bool stands_out(const Moved& moved, double least) const {
    return moved.problem.empty() && moved.sum() >= least && moved.sum() > moved.idle_per_second * busy_seconds / 2;
  }
};

std::vector<Moved> moved_ports(const Counters& idle, const Counters& before, const Counters& after,
                               const Interval& interval) {
  std::vector<Moved> result;
  for (const PortCount& now : after.ports) {
    Moved moved{.name = now.key(), .rdma = true, .unit = now.unit, .source = now.source};
    const PortCount* then = find_port(before, now.key());
    const PortCount* first = find_port(idle, now.key());
    if (now.source.empty()) {
      moved.problem = now.active ? "no counters" : "no counters, port is not active";
    } else if (!then || !first || then->source != now.source || first->source != now.source) {
      moved.problem = "came up meanwhile";
    } else {
      moved.sent = interval.moved(first->sent, then->sent, now.sent, moved);
      moved.received = interval.moved(first->received, then->received, now.received, moved);
      if (now.at_limit && moved.problem.empty()) moved.problem = "has reached its limit of 32 bits";
    }
    result.push_back(std::move(moved));
  }
  for (const PortCount& then : before.ports)
    if (!find_port(after, then.key())) result.push_back({.name = then.key(), .rdma = true, .problem = "is gone"});
  return result;
}

std::vector<Moved> moved_net(const Counters& idle, const Counters& before, const Counters& after,
                             const Interval& interval) {
  std::vector<Moved> result;
  for (const NetCount& now : after.net_devices) {
    const NetCount* then = find_net(before, now.name);
    const NetCount* first = find_net(idle, now.name);
    if (!then || !first) continue;  // a pod's that came up meanwhile
    Moved moved{.name = now.name, .source = "statistics/tx_bytes, rx_bytes"};
    moved.sent = interval.moved(first->sent_bytes, then->sent_bytes, now.sent_bytes, moved);
    moved.received = interval.moved(first->received_bytes, then->received_bytes, now.received_bytes, moved);
    result.push_back(std::move(moved));
  }
  return result;
}

}  // namespace

std::string text_of(Carrier verdict) {
  static constexpr const char* names[] = {"rdma", "tcp", "mixed", "no traffic", "cannot tell"};
  return names[static_cast<std::size_t>(verdict)];
}

Assessment assess(const Counters& idle, const Counters& before, const Counters& after) {
  const Interval interval{std::chrono::duration<double>(before.when - idle.when).count(),
                          std::chrono::duration<double>(after.when - before.when).count()};
  Assessment result;
  result.rdma = moved_ports(idle, before, after, interval);
  result.net = moved_net(idle, before, after, interval);
  auto& reasons = result.reasons;

  // What of each net device's bytes is not TCP.
  std::vector<double> sent, received;
  for (const Moved& net : result.net) {
    sent.push_back(net.sent);
    received.push_back(net.received);
  }
  std::vector<std::string> carried, unknown;
  for (const Moved& port : result.rdma) {
    const PortCount* count = find_port(after, port.name);
    if (!port.problem.empty()) {
      if (!count || count->active) unknown.push_back(port.name + ": " + port.problem);
      continue;
    }
    double bytes = port.sum();
    double shared = 0;
    double mtu = 1500;
    for (std::size_t i = 0; i < result.net.size(); ++i) {
      const Moved& net = result.net[i];
      if (std::find(count->net_devices.begin(), count->net_devices.end(), net.name) == count->net_devices.end())
        continue;
      if (const NetCount* device = find_net(after, net.name)) mtu = device->mtu;
      if (count->infiniband && !count->software) bytes -= ipoib_overhead * net.sum();
      if (!count->software) continue;
      // No packet is larger than the net device's MTU; bytes may be counted without headers.
      const double worth = port.unit == CounterUnit::packets ? mtu + ethernet_header : 2;
      const double sent_at_most = port.sent * worth, received_at_most = port.received * worth;
      shared += std::min(sent[i], sent_at_most) + std::min(received[i], received_at_most);
      sent[i] = std::max(0.0, sent[i] - sent_at_most);
      received[i] = std::max(0.0, received[i] - received_at_most);
    }
    Moved rest = port;
    if (bytes < port.sum()) {  // IPoIB
      rest.sent = std::max(0.0, bytes);
      rest.received = 0;
    }
    const bool packets = port.unit == CounterUnit::packets;
    if (interval.stands_out(rest, packets ? least_rdma_packets : least_rdma_bytes)) {
      carried.push_back(port.name + " " + amount_text(rest));
      result.rdma_bytes += packets ? port.sum() * mtu : rest.sum();
      if (shared >= least_net_bytes)
        reasons.push_back(port.name + " is done in software: its packets are UDP of " + join(count->net_devices) +
                          " and count there as well; up to " + bytes_text(shared) + " there are taken for them");
    } else if (port.sum() >= (packets ? least_rdma_packets : least_rdma_bytes) &&
               port.sum() <= port.idle_per_second * interval.busy_seconds / 2) {
      unknown.push_back(port.name + ": others' traffic hides the command's");
    } else if (bytes < port.sum() && port.sum() >= least_rdma_bytes) {
      reasons.push_back(port.name + "'s " + amount_text(port) + " are IPoIB of " + join(count->net_devices) +
                        ", which is TCP, not RDMA");
    }
  }

  std::vector<std::string> over_net;
  for (std::size_t i = 0; i < result.net.size(); ++i) {
    Moved rest = result.net[i];
    rest.sent = sent[i];
    rest.received = received[i];
    if (!interval.stands_out(rest, least_net_bytes)) continue;
    result.tcp_bytes += rest.sum();
    const bool is_download = rest.received > 20 * rest.sent;  // ranks that exchange data send as much
    over_net.push_back(rest.name + " " + amount_text(rest) + (is_download ? " (received only: a download?)" : ""));
  }

  const std::string rdma_text = "RDMA: " + join(carried), net_text = "network interfaces: " + join(over_net);
  const double share = result.rdma_bytes / std::max(1.0, result.rdma_bytes + result.tcp_bytes);
  if (!carried.empty() && over_net.empty()) {
    result.verdict = Carrier::rdma;
    reasons.insert(reasons.begin(), {rdma_text, "network interfaces: almost no traffic"});
  } else if (!carried.empty()) {
    reasons.insert(reasons.begin(), {rdma_text, net_text});
    const std::string percent = fmt::format("{:.1f} %", 100 * share);
    if (share <= 0.1) {
      result.verdict = Carrier::tcp;
      reasons.push_back("RDMA carried " + percent + " at most");
    } else if (share >= 0.9) {
      result.verdict = Carrier::rdma;
      reasons.push_back("the rest is no more than control traffic");
    } else if (result.tcp_bytes < control_bytes) {
      result.verdict = Carrier::rdma;
      reasons.push_back("less than " + bytes_text(control_bytes) + " over TCP is a launcher's control traffic");
    } else {
      result.verdict = Carrier::mixed;
      reasons.push_back("RDMA carried " + percent);
    }
  } else if (!unknown.empty()) {
    result.verdict = Carrier::cannot_tell;
    if (!over_net.empty()) reasons.push_back(net_text);
  } else if (!over_net.empty()) {
    result.verdict = Carrier::tcp;
    reasons.insert(reasons.begin(), {result.rdma.empty() ? "there is no RDMA device" : "RDMA: nothing", net_text});
  } else {
    result.verdict = Carrier::no_traffic;
    reasons.push_back(result.rdma.empty()
                          ? "there is no RDMA device, and the network interfaces carried almost no traffic"
                          : "RDMA devices and network interfaces carried almost no traffic");
    reasons.push_back("ranks on one machine use shared memory, which no counter counts: run it on two");
  }
  reasons.insert(reasons.end(), unknown.begin(), unknown.end());
  return result;
}

namespace {

void print(std::ostream& out, const Assessment& assessment, const std::vector<std::string>& problems) {
  multinode::Table table({"device", "kind", "sent", "received", "unit", "idle/s", "counted by"});
  int rows = 0;
  auto add = [&](const Moved& moved) {
    ++rows;
    const auto number = [](double value) { return fmt::format("{:.0f}", value); };
    const bool unknown = !moved.problem.empty();
    table.add({moved.name, moved.rdma ? "RDMA" : "net", unknown ? "?" : number(moved.sent),
               unknown ? "?" : number(moved.received), moved.unit == CounterUnit::bytes ? "bytes" : "packets",
               number(moved.idle_per_second), unknown ? moved.problem : moved.source});
  };
  for (const Moved& moved : assessment.rdma) add(moved);
  for (const Moved& moved : assessment.net)
    if (moved.sum() > 0 || !moved.problem.empty()) add(moved);
  out << "rdma_tune verify: " << text_of(assessment.verdict) << '\n';
  for (const std::string& reason : assessment.reasons) out << "  " << reason << '\n';
  if (rows) table.print(out);
  for (const std::string& line : problems) out << "problem: " << line << '\n';
  out << std::flush;
}

using Duration = std::chrono::duration<double>;

// Runs the command to its end and returns its status as a shell says it. Its input and output are the caller's.
int run_command(const std::vector<std::string>& command, const Signals& signals) {
  // Its own group, so that it gets a signal for this process's group once, from here: mpirun that gets two leaves its
  // processes behind. On a terminal it has to stay in this group, to read from it.
  const bool own_group = !::isatty(STDIN_FILENO);
  multinode::ChildProcess process(
      {.arguments = command, .own_group = own_group, .when_parent_dies = SIGTERM, .mask = signals.before()});
  process.leave_group_alone();
  while (!process.poll()) {
    pollfd polled{signals.descriptor(), POLLIN, 0};
    if (::poll(&polled, 1, -1) < 0 && errno != EINTR) check_errno(-1, "poll");
    while (const auto info = signals.next())
      // A terminal's Ctrl-C (SI_KERNEL) has reached a command in the same process group, too.
      if (info->ssi_signo != SIGCHLD && (own_group || info->ssi_code != SI_KERNEL))
        process.signal(static_cast<int>(info->ssi_signo));
  }
  return process.ending()->as_exit_status();
}

}  // namespace

int run_verify(int argc, const char* const* argv) {
  const char* const* const end = argv + argc;
  const char* const* const dashes = std::find(argv, end, std::string_view("--"));
  std::string sysfs = "/sys", require;
  double baseline = 1;
  po::options_description known("rdma_tune verify [options] -- COMMAND...: did its traffic use RDMA or TCP?");
  known.add_options()("require", po::value(&require), "exit with status 1 unless the traffic used this: rdma or tcp")(
      "baseline", po::value(&baseline)->default_value(1, "1"),
      "seconds to watch the idle machine first; its own traffic is subtracted");
  known.add(sysfs_option(sysfs));
  if (!multinode::parse_command_line(static_cast<int>(dashes - argv), argv, known, true)) return multinode::exit_right;
  if (!require.empty() && require != "rdma" && require != "tcp")
    throw UsageError("--require must be rdma or tcp, not '" + require + "'");
  multinode::require_range("--baseline", baseline, 0.0, 3600.0);
  const std::vector<std::string> command(std::min(dashes + 1, end), end);
  if (command.empty()) throw UsageError("verify needs a command, after --: rdma_tune verify -- mpirun ...");

  const Counters idle = read_counters(sysfs);
  Counters before = idle;
  if (baseline > 0) {
    // A counter that is fetched once a second says nothing of a shorter time.
    std::this_thread::sleep_for(std::max<Duration>(Duration(baseline), idle.delay));
    before = read_counters(sysfs);
  }

  int status = 0;
  {
    // What comes for this process goes to the command.
    const Signals signals{SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGCHLD};
    struct sigaction ignore {};
    struct sigaction pipe_before {};
    ignore.sa_handler = SIG_IGN;  // `rdma_tune verify ... | head` still gives its verdict on stderr
    ::sigaction(SIGPIPE, &ignore, &pipe_before);
    try {
      status = run_command(command, signals);
    } catch (const multinode::StartError& e) {
      std::cerr << "rdma_tune verify: cannot run " + command.front() + ": " + std::strerror(e.error) + "\n";
      return e.status;
    }
  }
  std::this_thread::sleep_for(before.delay);  // hw_counters are served from a cache for as long as their `lifespan`
  const Counters after = read_counters(sysfs);
  const Assessment assessment = assess(idle, before, after);
  print(std::cerr, assessment, after.problems);
  std::cerr << note_of_nvlink(sysfs);
  if (status || require.empty() || text_of(assessment.verdict) == require) return status;
  if (assessment.verdict == Carrier::cannot_tell) {
    std::cerr << "rdma_tune verify: --require " + require + ": the counters cannot tell\n";
    return multinode::exit_untestable;
  }
  std::cerr << "rdma_tune verify: --require " + require + ": the verdict is " + text_of(assessment.verdict) + "\n";
  return multinode::exit_wrong;
}

}  // namespace rdma
