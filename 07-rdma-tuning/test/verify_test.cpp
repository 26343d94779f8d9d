// What `rdma_tune verify` makes of counters. No RDMA device made them: the sysfs trees are written here, in the form
// of the drivers' own, and the command whose traffic is judged is a stand-in, a shell that writes new numbers into
// them. A real (soft-RoCE) device is what ci/test-cluster/soft-roce tests it with.
#include "rdma_tune/verify.hpp"

#include "tree.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>
#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

namespace verify_test {

using namespace std::chrono_literals;
using multinode::check_errno, multinode::testing::Process, multinode::testing::Result, multinode::testing::run;
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

TEST(Assess, WhatCarriedTheTraffic) {
  PortCount card = mlx5();
  card.unit = CounterUnit::packets;
  const PortCount ib{.device = "mlx5_0", .net_devices = {"ib0"}, .infiniband = true};
  using enum Carrier;
  const struct {
    Readings readings;
    Carrier verdict;
    const char* reason = "";
  } cases[] = {
      // Hardware counts RDMA apart from the interface.
      {Readings().port(mlx5(), 0, 800 * mega).net("eth0", 0, 0), rdma},
      {Readings().port(mlx5(), 0, 0).net("eth0", 0, 800 * mega), tcp},
      {Readings().port(mlx5(), 0, 400 * mega).net("eth0", 0, 400 * mega), mixed},
      {Readings().port(mlx5(), 0, 0).net("eth0", 0, 2000), no_traffic},
      {Readings().net("eth0", 0, 800 * mega), tcp},
      {Readings().net("eth0", 0, 0), no_traffic},
      // A launcher talks over TCP whatever the data goes over; and a connection that is set up over RDMA carries no
      // data yet.
      {Readings().port(mlx5(), 0, 800 * mega).net("eth0", 0, 2 * mega), rdma},
      {Readings().port(mlx5(), 0, 200'000).net("eth0", 0, 300'000), rdma},
      {Readings().port(mlx5(), 0, 20'000).net("eth0", 0, 800 * mega), tcp},
      {Readings().port(rxe(), 0, 40).net("eth0", 0, 800 * mega), tcp},
      // Another job's 400 MB in ten seconds, then 450 MB: 50 MB may be ours, or its own variation.
      {Readings().port(mlx5(), 400 * mega, 450 * mega).net("eth0", 0, 0), cannot_tell},
      // rxe's packets are UDP of its interface: between machines 1000 packets of 1100 octets, counted twice, and looped
      // back on one machine seen by no interface.
      {Readings().port(rxe(), 0, 1000).net("eth0", 0, 1'100'000), rdma, "UDP of eth0"},
      {Readings().port(rxe(), 0, 1000).net("eth0", 0, 0), rdma},
      // More than the packets can have been, and another interface's.
      {Readings().port(rxe(), 0, 10'000).net("eth0", 0, 60 * mega), mixed},
      {Readings().port(rxe(), 0, 10'000).net("eth0", 0, 0).net("eth1", 0, 60 * mega), mixed},
      {Readings().port(card, 0, 10'000).net("eth0", 0, 12 * mega), mixed},  // hardware: the same bytes are TCP
      // IPoIB is TCP. On Ethernet the port counts RoCE alone.
      {Readings().port(ib, 0, 830 * mega).net("ib0", 0, 800 * mega), tcp, "IPoIB of ib0"},
      {Readings().port(ib, 0, 800 * mega).net("ib0", 0, 1000), rdma},
      {Readings().port(mlx5(), 0, 830 * mega).net("eth0", 0, 800 * mega), mixed},
  };
  for (const auto& [readings, verdict, reason] : cases) {
    expect_verdict(readings.assess(), verdict);
    EXPECT_SAYS(all(readings.assess().reasons), reason);
  }
  EXPECT_EQ(cases[11].readings.assess().tcp_bytes, 0) << "rxe's UDP";
}

TEST(Assess, IdleTrafficIsSubtracted) {
  for (const std::uint64_t more : {std::uint64_t{0}, 500 * mega}) {
    const Assessment one = Readings().port(mlx5(), 5 * mega, 5 * mega + more).net("eth0", 9 * mega, 9 * mega).assess();
    EXPECT_EQ(one.rdma[0].sum(), static_cast<double>(more));
    EXPECT_EQ(one.net[0].sum(), 0);
    EXPECT_EQ(one.rdma[0].idle_per_second, 500'000);
    expect_verdict(one, more ? Carrier::rdma : Carrier::no_traffic);
  }
}

TEST(Assess, CountersThatSayNothing) {
  const auto hide_source = [](Readings& all) {
    for (Counters* counters : {&all.idle, &all.before, &all.after}) counters->ports[0].source = "";
  };
  const struct {
    void (*change)(Readings&);
    const char* problem;
    Carrier verdict = Carrier::cannot_tell;
    std::uint64_t moved = 0;
  } cases[] = {
      {hide_source, "no counters"},
      {[](Readings& all) { all.before.ports[0].sent = 1; }, "went backwards"},
      {[](Readings& all) { all.idle.ports[0].sent = 1; }, "went backwards"},
      {[](Readings& all) { all.after.ports[0].at_limit = true; }, "has reached its limit of 32 bits"},
      {[](Readings& all) { all.after.ports.clear(); }, "is gone"},
      {[](Readings& all) { all.before.ports.clear(); }, "came up meanwhile", Carrier::cannot_tell, 800 * mega},
      {[](Readings& all) { all.after.ports[0].source = "", all.after.ports[0].active = false; },
       "no counters, port is not active", Carrier::tcp},
  };
  for (const auto& [change, problem, verdict, moved] : cases) {
    Readings readings;
    change(readings.port(mlx5(), 0, moved).net("eth0", 0, 800 * mega));
    expect_verdict(readings.assess(), verdict);
    EXPECT_EQ(readings.assess().rdma.at(0).problem, problem);
  }

  // One port that says nothing does not hide one that says much.
  PortCount second = mlx5();
  second.device = "siw0";
  Readings both;
  both.port(mlx5(), 0, 800 * mega).port(second, 0, 0).net("eth0", 0, 0).after.ports[1].source = "";
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
  const auto expect = [](const std::string& sent, const std::string& received, std::uint64_t worth,
                         const std::string& source, CounterUnit unit = CounterUnit::bytes) {
    const Counters counters = rdma::read_counters(Tree(port("any_0", sent, received)).sys());
    EXPECT_EQ(counters.ports.at(0).key(), "any_0:1");
    EXPECT_EQ(counters.ports[0].source, source);
    EXPECT_EQ(counters.ports[0].sent, 1000 * worth);
    EXPECT_EQ(counters.ports[0].received, 2000 * worth);
    EXPECT_EQ(counters.ports[0].unit, unit);
    EXPECT_TRUE(counters.problems.empty());
  };
  expect("counters/port_xmit_data", "counters/port_rcv_data", 4, "counters/port_xmit_data x 4");
  expect("hw_counters/tx_bytes", "hw_counters/rx_bytes", 1, "hw_counters/tx_bytes");
  expect("hw_counters/hw_tx_bytes_cnt", "hw_counters/hw_rx_bytes_cnt", 1, "hw_counters/hw_tx_bytes_cnt");
  expect("hw_counters/sent_pkts", "hw_counters/rcvd_pkts", 1, "hw_counters/sent_pkts", CounterUnit::packets);
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

Result verify(const Tree& tree, const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> argv{PATH_rdma_tune, "verify", "--sysfs", tree.sys().string(), "--baseline", "0.05"};
  argv.insert(argv.end(), options.begin(), options.end());
  argv.insert(argv.end(), {"--", "sh", "-c", "cd " + tree.sys().string() + "; " + script});
  return run(argv);
}

// README.md has the runs that --require rdma lets through and stops.
TEST(VerifyProgram, TheRequirementAndTheCommandDecideTheStatus) {
  using Words = std::vector<std::string>;
  const Words rdma{"--require", "rdma"};
  const std::string port = "/sys/class/infiniband/mlx5_0/ports/1/", moves = set(sent, 100'000'000);
  const struct {
    Words options;
    std::string script;
    int status;
    std::string says;       // on standard error
    std::string more = "";  // lines added to the tree
  } cases[] = {
      {rdma, moves + set(received, 90'000'000), 0, "399996000"},  // four octets each
      {{}, set(tx, 200'000'000), 0, "rdma_tune verify: tcp\n"},   // nothing was required
      {{"--require", "tcp"}, set(tx, 300'000'000), 0, "rdma_tune verify: tcp\n"},
      {rdma, "true", 1, "the verdict is no traffic"},
      // As in the README, around exec, whose node has no usable port.
      {rdma, PATH_rdma_tune " exec --sysfs . -- sh -c '" + moves + "'", 0, "rdma_tune verify: rdma\n"},
      {{}, set("class/net/eth0/statistics/rx_bytes", 200'000'000), 0, "eth0 200 MB (received only: a download?)"},
      // A driver's cache is as old as `lifespan`: what the command sent last shows up that much later.
      {rdma, "(sleep 0.3; " + moves + ") >/dev/null 2>&1 & exit 0", 0, "",
       "F 444 " + port + "hw_counters/lifespan = 1500"},
      {rdma, set(tx, 100'000'000), 3, "the counters cannot tell\n", "X " + port + "counters"},
      {rdma, set(tx, 100'000'000) + "exit 7", 7, "rdma_tune verify: tcp\n"},
      {{}, "kill -9 $$", 128 + 9, ""},
  };
  for (const auto& [options, script, status, says, more] : cases) {
    const Result result = verify(Tree(mlx5_node + more), options, script);
    EXPECT_EQ(result.status, status) << script << result.err;
    EXPECT_SAYS(result.err, says);
  }
}

TEST(VerifyProgram, OutputPassesThrough) {
  const Tree tree(mlx5_node);
  const Result result = verify(tree, {}, "echo out; echo err >&2; printf 'no newline'");
  EXPECT_EQ(result.out, "out\nno newline");
  EXPECT_EQ(result.err.substr(0, 4), "err\n");
  // 3 MB, more than pipes hold.
  EXPECT_EQ(verify(tree, {}, "head -c 3000000 /dev/zero").out.size(), 3'000'000u);
}

// timeout and job scripts signal the whole process group: the command must not get it twice. The verdict still comes.
TEST(VerifyProgram, ASignalForTheGroupReachesTheCommandOnce) {
  Process process({PATH_rdma_tune, "verify", "--baseline", "0", "--", "sh", "-c",
                   "n=0; trap 'n=$((n+1)); echo got $n' TERM; echo ready; "
                   "while [ $n -lt 10 ] && kill -0 $PPID; do :; done; sleep 0.3; exit $((40+n))"});
  ASSERT_TRUE(process.wait_for("ready"));
  for (int i = 1; i <= 10; ++i) {  // two signals at once may look like one
    ASSERT_EQ(::kill(-process.pid(), SIGTERM), 0);
    ASSERT_TRUE(process.wait_for("got " + std::to_string(i) + "\\b"));
  }
  const Result result = process.wait();
  EXPECT_EQ(result.status, 50);
  EXPECT_SAYS(result.err, "rdma_tune verify: ");
}

// The same for a terminal's Ctrl-C, also where the input is something else.
TEST(VerifyProgram, CtrlCReachesTheCommandOnce) {
  for (const char* input : {"/dev/tty", "/dev/null"}) {
    int terminal = -1;
    const pid_t pid = ::forkpty(&terminal, nullptr, nullptr, nullptr);
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::execl("/bin/sh", "sh", "-c", "exec \"$@\" <$0", input, PATH_rdma_tune, "verify", "--baseline", "0", "--", "sh",
              "-c",
              "n=0; trap 'n=$((n+1)); echo interrupt $n' INT; echo ready; i=0; "
              "while [ $n = 0 ] && [ $i -lt 400 ]; do sleep 0.05; i=$((i+1)); done; sleep 0.3; exit $((40+n))",
              nullptr);
      ::_exit(99);
    }
    std::string output;
    for (char next; ::read(terminal, &next, 1) == 1;) {  // EIO: the last one that had the terminal has ended
      output += next;
      if (output.ends_with("ready")) check_errno(::write(terminal, "\3", 1), "write");
    }
    int status = 0;
    ASSERT_EQ(::waitpid(pid, &status, 0), pid);
    ::close(terminal);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 41) << input << status << output;
    EXPECT_SAYS(output, "rdma_tune verify: ");
  }
}

}  // namespace verify_test
