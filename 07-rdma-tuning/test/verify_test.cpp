// What `rdma_tune verify` makes of counters. No RDMA device made them: the sysfs trees are written here, in the form
// of the drivers' own, and the command whose traffic is judged is a stand-in, a shell that writes new numbers into
// them. A real (soft-RoCE) device is what ci/test-cluster/soft-roce tests it with.
#include "rdma_tune/verify.hpp"

#include "tree.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <poll.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

namespace verify_test {

using namespace std::chrono_literals;
using multinode::testing::Result;
using rdma::Assessment;
using rdma::Carrier;
using rdma::Counters;
using rdma::CounterUnit;
using rdma::NetCount;
using rdma::PortCount;
using rdma::testing::Tree;

constexpr std::uint64_t mega = 1'000'000;

// Ten seconds of idling, ten of the command.
struct Readings {
  Counters idle, before, after;

  Readings() {
    before.when = idle.when + 10s;
    after.when = before.when + 10s;
  }
  Readings& port(PortCount base, std::uint64_t idle_sum, std::uint64_t moved) {
    base.active = true;
    base.source = "test";
    idle.ports.push_back(base);
    base.sent += idle_sum / 2;
    base.received += idle_sum / 2;
    before.ports.push_back(base);
    base.sent += moved / 2;
    base.received += moved / 2;
    after.ports.push_back(base);
    return *this;
  }
  Readings& net(const std::string& name, std::uint64_t idle_sum, std::uint64_t moved, int mtu = 1500) {
    idle.net_devices.push_back({name, mtu, 1000, 1000});
    before.net_devices.push_back({name, mtu, 1000 + idle_sum / 2, 1000 + idle_sum / 2});
    after.net_devices.push_back({name, mtu, 1000 + idle_sum / 2 + moved / 2, 1000 + idle_sum / 2 + moved / 2});
    return *this;
  }
  Assessment assess() const { return rdma::assess(idle, before, after); }
};

PortCount mlx5() { return {.device = "mlx5_0", .net_devices = {"eth0"}}; }
PortCount rxe() { return {.device = "rxe0", .net_devices = {"eth0"}, .software = true, .unit = CounterUnit::packets}; }

std::string all(const std::vector<std::string>& lines) { return multinode::join(lines, "\n"); }

void expect_verdict(const Assessment& assessment, Carrier wanted) {
  EXPECT_EQ(text_of(assessment.verdict), text_of(wanted)) << all(assessment.reasons);
  EXPECT_FALSE(assessment.reasons.empty());
}

TEST(Assess, HardwareCountsRdmaApartFromTheInterface) {
  expect_verdict(Readings().port(mlx5(), 0, 800 * mega).net("eth0", 0, 0).assess(), Carrier::rdma);
  expect_verdict(Readings().port(mlx5(), 0, 0).net("eth0", 0, 800 * mega).assess(), Carrier::tcp);
  expect_verdict(Readings().port(mlx5(), 0, 400 * mega).net("eth0", 0, 400 * mega).assess(), Carrier::mixed);
  expect_verdict(Readings().port(mlx5(), 0, 0).net("eth0", 0, 2000).assess(), Carrier::no_traffic);
  expect_verdict(Readings().net("eth0", 0, 800 * mega).assess(), Carrier::tcp);
  expect_verdict(Readings().net("eth0", 0, 0).assess(), Carrier::no_traffic);
}

// A launcher talks over TCP whatever the data goes over; and a connection that is set up over RDMA carries no data yet.
TEST(Assess, ControlTrafficIsNotMixed) {
  expect_verdict(Readings().port(mlx5(), 0, 800 * mega).net("eth0", 0, 2 * mega).assess(), Carrier::rdma);
  expect_verdict(Readings().port(mlx5(), 0, 200'000).net("eth0", 0, 300'000).assess(), Carrier::rdma);
  expect_verdict(Readings().port(mlx5(), 0, 20'000).net("eth0", 0, 800 * mega).assess(), Carrier::tcp);
  expect_verdict(Readings().port(rxe(), 0, 40).net("eth0", 0, 800 * mega).assess(), Carrier::tcp);
}

TEST(Assess, IdleTrafficIsSubtracted) {
  const Assessment quiet = Readings().port(mlx5(), 5 * mega, 5 * mega).net("eth0", 9 * mega, 9 * mega).assess();
  EXPECT_EQ(quiet.rdma[0].sum(), 0);
  EXPECT_EQ(quiet.net[0].sum(), 0);
  EXPECT_EQ(quiet.rdma[0].idle_per_second, 500'000);
  expect_verdict(quiet, Carrier::no_traffic);
  const Assessment busy = Readings().port(mlx5(), 5 * mega, 505 * mega).net("eth0", 9 * mega, 9 * mega).assess();
  EXPECT_EQ(busy.rdma[0].sum(), 500e6);
  expect_verdict(busy, Carrier::rdma);
  // Another job's 400 MB in ten seconds, then 450 MB: 50 MB may be ours, or its own variation.
  expect_verdict(Readings().port(mlx5(), 400 * mega, 450 * mega).net("eth0", 0, 0).assess(), Carrier::cannot_tell);
}

TEST(Assess, RxeIsUdpOfItsInterface) {
  // Between machines: 1000 packets of 1100 octets, counted twice.
  const Assessment wire = Readings().port(rxe(), 0, 1000).net("eth0", 0, 1'100'000).assess();
  expect_verdict(wire, Carrier::rdma);
  EXPECT_EQ(wire.tcp_bytes, 0);
  EXPECT_SAYS(all(wire.reasons), "UDP of eth0");
  // Looped back on one machine the interface sees nothing.
  expect_verdict(Readings().port(rxe(), 0, 1000).net("eth0", 0, 0).assess(), Carrier::rdma);
  // More than the packets can have been.
  expect_verdict(Readings().port(rxe(), 0, 10'000).net("eth0", 0, 60 * mega).assess(), Carrier::mixed);
  // Another interface's bytes are never rxe's.
  expect_verdict(Readings().port(rxe(), 0, 10'000).net("eth0", 0, 0).net("eth1", 0, 60 * mega).assess(),
                 Carrier::mixed);
  // Not for hardware: there the same bytes are TCP.
  PortCount card = mlx5();
  card.unit = CounterUnit::packets;
  expect_verdict(Readings().port(card, 0, 10'000).net("eth0", 0, 12 * mega).assess(), Carrier::mixed);
}

TEST(Assess, IpoibIsTcp) {
  PortCount port{.device = "mlx5_0", .net_devices = {"ib0"}, .infiniband = true};
  const Assessment ipoib = Readings().port(port, 0, 830 * mega).net("ib0", 0, 800 * mega).assess();
  expect_verdict(ipoib, Carrier::tcp);
  EXPECT_SAYS(all(ipoib.reasons), "IPoIB of ib0");
  expect_verdict(Readings().port(port, 0, 800 * mega).net("ib0", 0, 1000).assess(), Carrier::rdma);
  // On Ethernet the port counts RoCE alone.
  expect_verdict(Readings().port(mlx5(), 0, 830 * mega).net("eth0", 0, 800 * mega).assess(), Carrier::mixed);
}

TEST(Assess, CountersThatSayNothing) {
  const auto with = [](std::uint64_t moved, const auto& change) {
    Readings readings;
    readings.port(mlx5(), 0, moved).net("eth0", 0, 800 * mega);
    change(readings);
    return readings.assess();
  };
  const auto without_source = [](Readings& all) {
    for (Counters* counters : {&all.idle, &all.before, &all.after}) counters->ports[0].source = "";
  };
  const struct {
    Assessment assessment;
    const char* problem;
  } cases[] = {
      {with(0, without_source), "no counters"},
      {with(0, [](Readings& all) { all.before.ports[0].sent = 1; }), "went backwards"},
      {with(0, [](Readings& all) { all.idle.ports[0].sent = 1; }), "went backwards"},
      {with(0, [](Readings& all) { all.after.ports[0].at_limit = true; }), "has reached its limit of 32 bits"},
      {with(0, [](Readings& all) { all.after.ports.clear(); }), "is gone"},
      {with(800 * mega, [](Readings& all) { all.before.ports.clear(); }), "came up meanwhile"},
  };
  for (const auto& [assessment, problem] : cases) {
    expect_verdict(assessment, Carrier::cannot_tell);
    EXPECT_EQ(assessment.rdma.at(0).problem, problem);
  }
  const Assessment down = with(0, [&](Readings& all) {
    without_source(all);
    all.after.ports[0].active = false;
  });
  expect_verdict(down, Carrier::tcp);

  // One port that says nothing does not hide one that says much.
  PortCount second = mlx5();
  second.device = "siw0";
  Readings both;
  both.port(mlx5(), 0, 800 * mega).port(second, 0, 0).net("eth0", 0, 0);
  both.after.ports[1].source = "";
  expect_verdict(both.assess(), Carrier::rdma);
  EXPECT_SAYS(all(both.assess().reasons), "siw0:1: no counters");
}

// -- sysfs ------------------------------------------------------------------------------------------------------------

// Lines of a tree.
std::string net(const std::string& name) {
  const std::string file = "F 644 /sys/class/net/" + name;
  return file + "/mtu = 1500\n" + file + "/statistics/tx_bytes = 1000\n" + file + "/statistics/rx_bytes = 1000\n";
}

std::string port(const std::string& device, const std::string& sent, const std::string& received) {
  const std::string file = "F 644 /sys/class/infiniband/" + device + "/ports/1/";
  return file + "state = 4: ACTIVE\n" + file + "link_layer = Ethernet\n" + file + sent + " = 1000\n" + file + received +
         " = 2000\n";
}

const std::string mlx5_node = port("mlx5_0", "counters/port_xmit_data", "counters/port_rcv_data") + net("eth0") +
                              "F 444 /sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan = 10\n"
                              "D /sys/class/infiniband/mlx5_0/device/net/eth0\n";

TEST(Counters, NamesOfTheDrivers) {
  const struct {
    const char *sent, *received, *source;
    std::uint64_t worth;
    CounterUnit unit;
  } drivers[] = {
      {"counters/port_xmit_data", "counters/port_rcv_data", "counters/port_xmit_data x 4", 4, CounterUnit::bytes},
      {"hw_counters/tx_bytes", "hw_counters/rx_bytes", "hw_counters/tx_bytes", 1, CounterUnit::bytes},
      {"hw_counters/hw_tx_bytes_cnt", "hw_counters/hw_rx_bytes_cnt", "hw_counters/hw_tx_bytes_cnt", 1,
       CounterUnit::bytes},
      {"hw_counters/sent_pkts", "hw_counters/rcvd_pkts", "hw_counters/sent_pkts", 1, CounterUnit::packets},
  };
  for (const auto& driver : drivers) {
    const Counters counters = rdma::read_counters(Tree(port("any_0", driver.sent, driver.received)).sys());
    ASSERT_EQ(counters.ports.size(), 1u);
    EXPECT_EQ(counters.ports[0].key(), "any_0:1");
    EXPECT_EQ(counters.ports[0].source, driver.source);
    EXPECT_EQ(counters.ports[0].sent, 1000 * driver.worth);
    EXPECT_EQ(counters.ports[0].received, 2000 * driver.worth);
    EXPECT_EQ(counters.ports[0].unit, driver.unit);
    EXPECT_TRUE(counters.problems.empty());
  }
}

TEST(Counters, IrdmaCountsBothFamilies) {
  const Tree tree(port("irdma0", "hw_counters/ip4OutOctets", "hw_counters/ip4InOctets") +
                  "F 444 /sys/class/infiniband/irdma0/ports/1/hw_counters/ip6OutOctets = 5\n"
                  "F 444 /sys/class/infiniband/irdma0/ports/1/hw_counters/ip6InOctets = 7\n");
  const Counters counters = rdma::read_counters(tree.sys());
  EXPECT_EQ(counters.ports[0].sent, 1005u);
  EXPECT_EQ(counters.ports[0].received, 2007u);
}

TEST(Counters, DelayIsTheLongestLifespan) {
  Tree tree(mlx5_node + port("rxe0", "hw_counters/sent_pkts", "hw_counters/rcvd_pkts") +
            "F 444 /sys/class/infiniband/rxe0/ports/1/hw_counters/lifespan = 12\n");
  EXPECT_EQ(rdma::read_counters(tree.sys()).delay, 12ms);
  tree.add(port("bnxt_re0", "hw_counters/tx_bytes", "hw_counters/rx_bytes"));
  EXPECT_EQ(rdma::read_counters(tree.sys()).delay, 1100ms) << "that card writes its counters once a second";
}

TEST(Counters, WhatStandsOnAnotherInterfaceIsLeftOut) {
  Tree tree(R"(F 644 /sys/class/net/bonding_masters = bond0
L /sys/class/net/bond0/lower_eth1 -> ../eth1
L /sys/class/net/eth0.100/lower_eth0 -> ../eth0
L /sys/class/net/docker0/lower_veth1 -> ../veth1
L /sys/class/net/veth1/master -> ../docker0
L /sys/class/net/eth1/master -> ../bond0
D /sys/class/net/eth1/device
F 444 /sys/class/infiniband/rxe0/parent = bond0
)");
  tree.add(port("rxe0", "hw_counters/sent_pkts", "hw_counters/rcvd_pkts"));
  for (const char* name : {"lo", "eth0", "eth1", "bond0", "eth0.100", "docker0", "veth1"}) tree.add(net(name));
  const Counters counters = rdma::read_counters(tree.sys());
  EXPECT_EQ(multinode::join(counters.net_devices, " ", &NetCount::name), "eth0 eth1");
  EXPECT_EQ(counters.ports[0].net_devices, std::vector<std::string>{"eth1"}) << "bond0's bytes are eth1's";
  EXPECT_TRUE(counters.ports[0].software);
}

TEST(Counters, GarbageCountsNothing) {
  const std::string sent = "F 644 /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data = ";
  Tree tree(mlx5_node + sent +
            "many\nF 644 /sys/class/net/eth0/statistics/tx_bytes = -5\n"
            "X /sys/class/net/eth0/statistics/rx_bytes\nD /sys/class/net/eth0/statistics/rx_bytes\n"
            "F 644 /sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan = 99999999999999\n");
  const Counters counters = rdma::read_counters(tree.sys());
  EXPECT_EQ(counters.ports[0].source, "");
  EXPECT_TRUE(counters.net_devices.empty());
  EXPECT_EQ(counters.delay, 0ms);
  EXPECT_SAYS(all(counters.problems), "rx_bytes: cannot be read");
  tree.add(sent + "4294967295");
  EXPECT_TRUE(rdma::read_counters(tree.sys()).ports[0].at_limit);
  EXPECT_THROW(rdma::read_counters(tree / "nothing"), multinode::UsageError);
}

// -- the program ------------------------------------------------------------------------------------------------------

// The stand-in: writes what a command's traffic would have made of the counters.
std::string set(const std::string& file, std::uint64_t value) {
  return "echo " + std::to_string(value) + " > " + file + "; ";
}
const std::string sent = "class/infiniband/mlx5_0/ports/1/counters/port_xmit_data";
const std::string received = "class/infiniband/mlx5_0/ports/1/counters/port_rcv_data";
const std::string tx = "class/net/eth0/statistics/tx_bytes";

Result verify(const Tree& tree, std::vector<std::string> options, const std::string& script) {
  std::vector<std::string> argv{PATH_rdma_tune, "verify", "--sysfs", tree.sys().string(), "--baseline", "0.05"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", "sh", "-c", "cd " + tree.sys().string() + "; " + script});
  return multinode::testing::run(argv);
}

// README.md has the runs that --require rdma lets through and stops.
TEST(VerifyProgram, TheRequirementDecides) {
  const Tree tree(mlx5_node);
  const Result rdma = verify(tree, {"--require", "rdma"}, set(sent, 100'000'000) + set(received, 90'000'000));
  EXPECT_EQ(rdma.status, 0) << rdma.err;
  EXPECT_SAYS(rdma.err, "399996000");  // four octets each
  EXPECT_EQ(verify(tree, {}, set(tx, 200'000'000)).status, 0) << "nothing was required";
  EXPECT_EQ(verify(tree, {"--require", "tcp"}, set(tx, 300'000'000)).status, 0);
  EXPECT_EQ(verify(tree, {"--require", "rdma"}, "true").status, 1);
  // As in the README, around exec, whose node has no usable port.
  const Result nested =
      verify(tree, {"--require", "rdma"},
             std::string(PATH_rdma_tune) + " exec --sysfs . -- sh -c '" + set(sent, 200'000'000) + "'");
  EXPECT_EQ(nested.status, 0) << nested.err;
  const Result download = verify(tree, {}, set("class/net/eth0/statistics/rx_bytes", 200'000'000));
  EXPECT_SAYS(download.err, "eth0 200 MB (received only: a download?)");
}

// A server that never ends: the verdict comes while it runs.
TEST(VerifyProgram, JudgesAfterATime) {
  const Tree tree(mlx5_node);
  multinode::testing::Process process({PATH_rdma_tune, "verify", "--sysfs", tree.sys().string(), "--baseline", "0",
                                       "--for", "2s", "--", "sh", "-c",
                                       "cd " + tree.sys().string() + "; " + set(sent, 100'000'000) +
                                           "trap 'exit 9' TERM; while :; do sleep 0.05; done"});
  ASSERT_TRUE(process.wait_for("rdma_tune verify: rdma\n"));
  process.signal(SIGTERM);
  const Result result = process.wait();
  EXPECT_EQ(result.status, 9);
  EXPECT_EQ(multinode::testing::occurrences(result.err, "verify: rdma\n"), 1U);
  EXPECT_GE(multinode::testing::occurrences(result.err, " s: RDMA "), 1U) << result.err;
  // Without a command it is what runs on the machine, here nothing.
  const Result idle = multinode::testing::run(
      {PATH_rdma_tune, "verify", "--sysfs", tree.sys().string(), "--for", "0.2s", "--require", "rdma"});
  EXPECT_EQ(idle.status, 1) << idle.err;
  EXPECT_SAYS(idle.err, "rdma_tune verify: no traffic\n");
}

// A driver's cache is as old as `lifespan`: what the command sent last shows up that much later.
TEST(VerifyProgram, CountersAreReadWhenTheyAreNew) {
  const Tree tree(mlx5_node + "F 444 /sys/class/infiniband/mlx5_0/ports/1/hw_counters/lifespan = 1500");
  const Result result =
      verify(tree, {"--require", "rdma"}, "(sleep 0.3; " + set(sent, 100'000'000) + ") >/dev/null 2>&1 & exit 0");
  EXPECT_EQ(result.status, 0) << result.err;
}

TEST(VerifyProgram, CannotTell) {
  const Tree tree(mlx5_node + "X /sys/class/infiniband/mlx5_0/ports/1/counters");
  const Result result = verify(tree, {"--require", "rdma"}, set(tx, 100'000'000));
  EXPECT_EQ(result.status, 3) << result.err;
  EXPECT_SAYS(result.err, "cannot tell");
  EXPECT_SAYS(result.err, "mlx5_0:1: no counters");
}

TEST(VerifyProgram, CommandsOwnStatusWins) {
  const Tree tree(mlx5_node);
  const Result failed = verify(tree, {"--require", "rdma"}, set(tx, 100'000'000) + "exit 7");
  EXPECT_EQ(failed.status, 7);
  EXPECT_SAYS(failed.err, "rdma_tune verify: tcp\n");
  EXPECT_EQ(verify(tree, {}, "kill -9 $$").status, 128 + 9);
  const Result missing =
      multinode::testing::run({PATH_rdma_tune, "verify", "--baseline", "0", "--", "/no/such/program"});
  EXPECT_EQ(missing.status, 127);
  EXPECT_EQ(missing.err, "rdma_tune verify: cannot run /no/such/program: No such file or directory\n");
  EXPECT_EQ(multinode::testing::run({PATH_rdma_tune, "verify", "--baseline", "0", "--", "/"}).status, 126);
}

TEST(VerifyProgram, OutputPassesThrough) {
  const Tree tree(mlx5_node);
  const Result result = verify(tree, {}, "echo out; echo err >&2; printf 'no newline'");
  EXPECT_EQ(result.out, "out\nno newline");
  EXPECT_EQ(result.err.substr(0, 4), "err\n");
  // 3 MB, more than pipes hold.
  EXPECT_EQ(verify(tree, {}, "head -c 3000000 /dev/zero").out.size(), 3'000'000u);
}

TEST(VerifyProgram, JsonHasTheVerdict) {
  const Tree tree(mlx5_node);
  const std::string file = tree / "verify.json";
  ASSERT_EQ(verify(tree, {"--json", file}, set(sent, 100'001'000) + "exit 4").status, 4);
  std::ifstream in(file);
  const auto json = nlohmann::json::parse(in);
  EXPECT_EQ(json["verdict"], "rdma");
  EXPECT_EQ(json["status"], 4);
  EXPECT_EQ(json["rdma"][0]["name"], "mlx5_0:1");
  EXPECT_EQ(json["rdma"][0]["sent"], 400'000'000);
}

// A signal for rdma_tune reaches the command, and its counters are still judged.
TEST(VerifyProgram, ASignalReachesTheCommandAndTheVerdictComes) {
  const Tree tree(mlx5_node);
  multinode::testing::Process process({PATH_rdma_tune, "verify", "--sysfs", tree.sys().string(), "--baseline", "0",
                                       "--require", "rdma", "--", "sh", "-c",
                                       "cd " + tree.sys().string() + "; trap '" + set(sent, 100'000'000) +
                                           " exit 9' TERM; echo ready; while :; do sleep 0.05; done"});
  ASSERT_TRUE(process.wait_for("ready"));
  process.signal(SIGTERM);
  const Result result = process.wait();
  EXPECT_EQ(result.status, 9) << result.err;
  EXPECT_SAYS(result.err, "rdma_tune verify: rdma\n");
}

// timeout and job scripts signal the whole process group: the command must not get it twice.
TEST(VerifyProgram, ASignalForTheGroupReachesTheCommandOnce) {
  multinode::testing::Process process({PATH_rdma_tune, "verify", "--baseline", "0", "--", "sh", "-c",
                                       "n=0; trap 'n=$((n+1)); echo got $n' TERM; echo ready; "
                                       "while [ $n -lt 10 ] && kill -0 $PPID; do :; done; sleep 0.3; exit $((40+n))"});
  ASSERT_TRUE(process.wait_for("ready"));
  for (int i = 1; i <= 10; ++i) {  // two signals at once may look like one
    ASSERT_EQ(::kill(-process.pid(), SIGTERM), 0);
    ASSERT_TRUE(process.wait_for("got " + std::to_string(i) + "\\b"));
  }
  EXPECT_EQ(process.wait().status, 50);
}

// The same for a terminal's Ctrl-C.
TEST(VerifyProgram, CtrlCReachesTheCommandOnce) {
  int terminal = -1;
  const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  ASSERT_GE(pid, 0);
  if (pid == 0) {
    ::execl(PATH_rdma_tune, PATH_rdma_tune, "verify", "--baseline", "0", "--", "sh", "-c",
            "n=0; trap 'n=$((n+1)); echo interrupt $n' INT; echo ready; "
            "while [ $n = 0 ]; do sleep 0.05; done; sleep 0.3; exit $((40+n))",
            nullptr);
    ::_exit(99);
  }
  std::string output;
  bool pressed = false;
  const auto deadline = std::chrono::steady_clock::now() + 30s;
  char buffer[4096];
  pollfd polled{terminal, POLLIN, 0};
  while (std::chrono::steady_clock::now() < deadline) {
    if (::poll(&polled, 1, 100) <= 0) continue;
    const ssize_t count = ::read(terminal, buffer, sizeof buffer);
    if (count <= 0) break;  // EIO: the last one that had the terminal has ended
    output.append(buffer, static_cast<std::size_t>(count));
    if (!pressed && output.find("ready") != std::string::npos) pressed = ::write(terminal, "\3", 1) == 1;
  }
  if (std::chrono::steady_clock::now() >= deadline) ::kill(pid, SIGKILL);
  int status = 0;
  ASSERT_EQ(::waitpid(pid, &status, 0), pid);
  ::close(terminal);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 41) << status << output;
  EXPECT_SAYS(output, "rdma_tune verify: ");
}

}  // namespace verify_test
