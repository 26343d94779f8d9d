// rdma_bw, with a stand-in for chapter 02's benchmark that moves the counters of a tree.
#include "scratch.hpp"
#include "tree.hpp"

#include <testing/program_test.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <sys/stat.h>

#include <sstream>

namespace rdma_bw_test {

using multinode::testing::Result;
using nlohmann::json;
using rdma::testing::Scratch, rdma::testing::Tree;
using ::testing::HasSubstr, ::testing::MatchesRegex, ::testing::Not;
using namespace std::chrono_literals;

constexpr char with_counters[] =
    "F 644 /sys/class/infiniband/mlx5_0/ports/1/counters/port_xmit_data = 0\\n\n"
    "F 644 /sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data = 0\\n\n"
    "F 644 /sys/class/net/enp61s0/statistics/tx_bytes = 0\\n\n"
    "F 644 /sys/class/net/enp61s0/statistics/rx_bytes = 0\\n\n";
constexpr char over_rdma[] = "count class/infiniband/mlx5_0/ports/1/counters/port_xmit_data";
constexpr char over_tcp[] = "count class/net/enp61s0/statistics/tx_bytes";

class RdmaBw : public ::testing::Test {
 protected:
  explicit RdmaBw(const std::string& tree = "mlx5-pairs") : tree_(Tree::load(tree)) {}

  // A shell script; $half is rdma or tcp, $SYS the tree, $RANKS the {n}, results RANKS ALGBW BUSBW prints the JSON.
  void benchmark(const std::string& body) {
    const std::string head = "#!/bin/bash\nSYS=" + tree_.sys().string() + R"(
half=rdma; [ "$NCCL_IB_DISABLE" != 1 ] || half=tcp
count() { echo $(($(cat $SYS/$1) + 5000000000)) > $SYS/$1; }
results() {
  for size in 8 1000000; do for in_place in true false; do
    echo "[rank 0] {\"algbw_gb_per_s\":$2,\"busbw_gb_per_s\":$3,\"in_place\":$in_place,\"ranks\":$1,\"size_bytes\":$size,\"time_us\":$size}"
  done; done
}
)";
    scratch_.write("benchmark", head + body);
    ::chmod((scratch_ / "benchmark").c_str(), 0755);
  }
  Result bw(std::vector<std::string> words) {
    std::vector<std::string> command{PATH_rdma_bw,  "--baseline",          "0", "--sysfs", tree_.sys().string(),
                                     "--benchmark", scratch_ / "benchmark"};
    if (std::ranges::find(words, "--launch") == words.end())
      command.insert(command.end(), {"--launch", "env RANKS={n}"});
    command.insert(command.end(), words.begin(), words.end());
    return multinode::testing::run(command);
  }
  std::string contents(const std::string& name) const { return multinode::testing::text_of(scratch_ / name); }

  Tree tree_;
  Scratch scratch_;
};

class RdmaBwWithoutRdma : public RdmaBw {
 protected:
  RdmaBwWithoutRdma() : RdmaBw("no-device") {}
};

// The results that the tutorial's programs stored, in GB/s, are its table in Gbit/s.
constexpr char tutorial[] = R"(
case $half$RANKS in
  rdma16) results 16 8.154 15.289 ;;
  tcp16) results 16 1.939 3.635 ;;
  rdma32) results 32 4.914 9.522 ;;
  tcp32) results 32 1.944 3.767 ;;
esac
)";

TEST_F(RdmaBw, PrintsTheTutorialsTable) {
  tree_.add(with_counters);
  benchmark(std::string(tutorial) + "[ $half = rdma ] && " + over_rdma + " || " + over_tcp);
  const auto result = bw({"--processes", "16,32", "--plot", scratch_ / "bw.svg", "--json", scratch_ / "bw.json"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_THAT(result.out,
              HasSubstr("\n       16       122.3   65.2      8.0  rdma           29.1   15.5      8.0  tcp     4.2\n"
                        "       32        76.2   39.3      8.0  rdma           30.1   15.6      8.0  tcp     2.5\n"));
  std::istringstream lines(contents("bw.json"));
  std::string line;
  ASSERT_TRUE(std::getline(lines, line));
  const json first = json::parse(line);
  EXPECT_EQ(first["processes"], 16);
  EXPECT_EQ(first["rdma"]["over"], "rdma");
  EXPECT_EQ(first["without"]["over"], "tcp");
  EXPECT_NEAR(first["rdma"]["busbw_gbit_per_s"], 122.312, 1e-9);
  EXPECT_EQ(first["rdma"]["size_bytes"], 1000000);
  EXPECT_EQ(first["rdma"]["latency_us"], 8);
  const std::string svg = contents("bw.svg");
  EXPECT_EQ(multinode::testing::occurrences(svg, "<rect x="), 4u);
  for (const char* label : {">122.3<", ">29.1<", ">76.2<", ">30.1<", ">16 processes<", ">32 processes<"})
    EXPECT_THAT(svg, HasSubstr(label));
}

TEST_F(RdmaBw, SaysWhenRdmaWasNotUsed) {
  tree_.add(with_counters);
  benchmark("results 2 1 1\n" + std::string(over_tcp));
  const auto result = bw({});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_THAT(result.out, HasSubstr("2 processes: both halves ran over TCP: RDMA was not used"));
}

TEST_F(RdmaBw, SaysWhenTheOtherHalfUsedRdmaToo) {
  tree_.add(with_counters);
  benchmark("results 2 1 1\n" + std::string(over_rdma));
  const auto result = bw({});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_THAT(result.out, HasSubstr("2 processes: the half without RDMA ran over RDMA too"));
}

TEST_F(RdmaBw, SaysWhenNothingLeftTheMachine) {
  tree_.add(with_counters);
  benchmark("results 2 1 1");
  const auto result = bw({});
  EXPECT_EQ(result.status, 1) << result.all();
  EXPECT_THAT(result.out,
              HasSubstr("2 processes: nothing left this machine: --launch must start processes on two nodes"));
}

TEST_F(RdmaBw, SaysWhenTheCountersCannotTell) {
  benchmark("results 2 1 1");
  const auto result = bw({});
  EXPECT_EQ(result.status, 3) << result.all();
  EXPECT_THAT(result.out, HasSubstr("the counters cannot tell"));
}

TEST_F(RdmaBw, GivesEachHalfItsVariables) {
  tree_.add(with_counters);
  benchmark("env > " + scratch_.path().string() + "/$half; echo \"$@\" > " + scratch_.path().string() +
            "/words; results 2 1 1; [ $half = rdma ] && " + over_rdma + " || " + over_tcp);
  const auto result =
      bw({"--launch", R"(env A="b 'c'" 'D=e "f" \' G=h\ i)", "--backend", "mpi", "--", "-b", "1K", "-e", "4M"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_EQ(contents("words"), "--backend mpi --json /dev/stdout -b 1K -e 4M\n");
  for (const char* variable : {"\nUCX_NET_DEVICES=mlx5_0:1\n", "\nUCX_IB_GID_INDEX=3\n", "\nOMPI_MCA_pml=ucx\n",
                               "\nA=b 'c'\n", "\nD=e \"f\" \\\n", "\nG=h i\n"})
    EXPECT_THAT("\n" + contents("rdma"), HasSubstr(variable));
  for (const char* variable : {"\nNCCL_IB_DISABLE=1\n", "\nNCCL_SOCKET_IFNAME==enp61s0\n", "\nUCX_TLS=tcp,self,sm\n",
                               "\nUCX_NET_DEVICES=enp61s0\n", "\nOMPI_MCA_pml=ucx\n"})
    EXPECT_THAT("\n" + contents("tcp"), HasSubstr(variable));
  EXPECT_THAT(contents("tcp"), Not(HasSubstr("NCCL_IB_HCA")));
}

TEST_F(RdmaBw, TakesTheBackendThatThisMachineHas) {
  benchmark("echo \"$@\" > " + scratch_.path().string() + "/words; results 2 1 1");
  bw({});
  EXPECT_THAT(contents("words"), HasSubstr("--backend nccl --json /dev/stdout -b 8 -e 128M -f 8\n")) << "it has GPUs";
}

TEST_F(RdmaBwWithoutRdma, MeasuresTheOtherHalf) {
  benchmark(tutorial);
  const auto result = bw({"--processes", "16"});
  EXPECT_EQ(result.status, 77) << result.all();
  EXPECT_THAT(result.out, HasSubstr("\n       16  -           -      -        -              29.1   15.5"));
  EXPECT_THAT(result.out, HasSubstr("no usable RDMA port here: only the half without RDMA was measured\n"));
}

TEST_F(RdmaBwWithoutRdma, FailsWithTheBenchmark) {
  const struct {
    std::string body, why;
    int status;
  } cases[] = {
      {"exit 5", "the benchmark ended with exit status 5", 1},
      {"kill -9 $$", "the benchmark ended with exit status 137", 1},
      {"exit 77", "the benchmark lacks its hardware (exit status 77); see --backend", 77},
      {"echo hello", "the benchmark printed no result", 1},
      {"results 2 1 1 | sed s/true/7/", "the benchmark's JSON is not what it should be: .*", 1},
      {"results 1 1 null", "the benchmark ran on one rank, where there is no bandwidth: see --launch", 1},
      {"exec sleep 100", "the benchmark did not end within --timeout, 5.0 s", 1},
  };
  for (const auto& one : cases) {
    benchmark(one.body);
    const auto result = bw({"--timeout", "5"});
    EXPECT_EQ(result.status, one.status) << one.body << result.all();
    std::string last = result.err.substr(result.err.find('\n') + 1);
    EXPECT_TRUE(std::regex_match(
        last, std::regex("rdma_bw: " + std::regex_replace(one.why, std::regex("[()]"), "\\$&") + "\n")))
        << result.err;
    EXPECT_LT(result.seconds, 50s) << one.body;
  }
}

TEST_F(RdmaBwWithoutRdma, DoesNotWaitForWhatABenchmarkLeavesBehind) {
  benchmark("results 2 1 1; sleep 60 &");
  const auto result = bw({});
  EXPECT_EQ(result.status, 77) << result.all();
  EXPECT_LT(result.seconds, 30s);
}

TEST_F(RdmaBwWithoutRdma, RefusesABadCommandLineInOneLine) {
  benchmark("results 2 1 1");
  const struct {
    std::vector<std::string> words;
    std::string why;
  } cases[] = {
      {{"--launch", "mpirun 'n"}, "rdma_bw: --launch: 'mpirun 'n' has an unmatched quote\n"},
      {{"--launch", "no-such-launcher -n {n}"},
       "rdma_bw: --launch: cannot run no-such-launcher: No such file or directory\n"},
      {{"--launch", ""}, "rdma_bw: --launch is empty\n"},
      {{"--launch", "env", "--processes", "2,4"},
       "rdma_bw: --processes has several numbers, but --launch has no {n}\n"},
      {{"--processes", "1"}, "rdma_bw: --processes must be numbers from 2 on, such as 2,4,8, not '1'\n"},
      {{"--processes", "2,,4"}, "rdma_bw: --processes must be numbers from 2 on, such as 2,4,8, not '2,,4'\n"},
      {{"--backend", "gloo"}, "rdma_bw: --backend must be auto, nccl or mpi, not 'gloo'\n"},
      {{"--plot", "/no/such/folder/bw.svg"},
       "rdma_bw: --plot: cannot write /no/such/folder/bw.svg: No such file or directory\n"},
      {{"stray"}, "rdma_bw: only options are expected, no other words; see --help\n"},
  };
  for (const auto& one : cases) {
    const auto result = bw(one.words);
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_EQ(std::regex_replace(result.err, std::regex("^rdma_bw: 2 processes, without RDMA [.]{3}\n"), ""), one.why);
    EXPECT_EQ(result.out, "");
  }
  const auto result = multinode::testing::run({PATH_rdma_bw, "--benchmark", "/no/such/program"});
  EXPECT_EQ(result.status, 2);
  EXPECT_EQ(result.err, "rdma_bw: --benchmark: cannot run /no/such/program: No such file or directory\n");
}

#if defined(MULTINODE_HAVE_MPI) && defined(PATH_all_reduce_perf)
TEST_F(RdmaBwWithoutRdma, UnderstandsTheRealBenchmark) {
  std::string launch;
  for (const std::string& word : multinode::testing::under_mpirun(3, {})) launch += word + " ";
  const auto result =
      multinode::testing::run({PATH_rdma_bw, "--baseline", "0", "--sysfs", tree_.sys().string(), "--launch", launch,
                               "--json", scratch_ / "bw.json", "--", "-b", "8", "-e", "64K", "-f", "8192", "-n", "3"});
  EXPECT_EQ(result.status, 77) << result.all();
  const json row = json::parse(contents("bw.json"));
  EXPECT_EQ(row["processes"], 3);
  EXPECT_EQ(row["without"]["size_bytes"], 65536) << row;
  EXPECT_GT(row["without"]["busbw_gbit_per_s"], row["without"]["algbw_gbit_per_s"]);
  EXPECT_GT(row["without"]["latency_us"], 0);
}
#endif

}  // namespace rdma_bw_test
