// rdma_bw, with a stand-in for chapter 02's benchmark that moves the counters of a tree.
#include "tree.hpp"

#include <test/support/program_test.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>

namespace rdma_bw_test {

using multinode::testing::Result;
using rdma::testing::Tree;
using ::testing::IsNotSubstring;

const std::string over_rdma = "count class/infiniband/mlx5_0/ports/1/counters/port_xmit_data; ",
                  over_tcp = "count class/net/enp61s0/statistics/tx_bytes; ";
const std::string right = "[ $half = rdma ] && " + over_rdma + " [ $half = rdma ] || " + over_tcp;

class RdmaBw : public ::testing::Test {
 protected:
  // A build folder whose all_reduce_perf is a shell script. $half is rdma or tcp, `results RANKS ALGBW BUSBW` prints.
  Result bw(const std::string& tree_name, const std::string& body, std::vector<std::string> words = {}) {
    Tree tree = Tree::load(tree_name);
    if (tree_name == "mlx5-pairs")
      for (const char* file : {"infiniband/mlx5_0/ports/1/counters/port_xmit_data", "net/enp61s0/statistics/rx_bytes",
                               "infiniband/mlx5_0/ports/1/counters/port_rcv_data", "net/enp61s0/statistics/tx_bytes"})
        tree.add(std::string("F 644 /sys/class/") + file + " = 0\\n");
    const std::string benchmark = scratch_ / "02-mpi/all_reduce_perf", sys = tree.sys().string();
    scratch_.write("02-mpi/all_reduce_perf", "#!/bin/bash\ncd " + sys + R"(
half=rdma; [ "$NCCL_IB_DISABLE" != 1 ] || half=tcp
count() { echo $(($(cat $1) + 5000000000)) > $1; }
results() {
  for size in 8 1000000; do for in_place in true false; do
    algbw=$2 busbw=$3; [ $in_place = false ] || algbw=9 busbw=9
    echo "[rank 0] {\"algbw_gb_per_s\":$algbw,\"backend\":\"mpi\",\"busbw_gb_per_s\":$busbw,\"in_place\":$in_place,\"late\":[],\"ranks\":$1,\"redop\":\"sum\",\"size_bytes\":$size,\"time_us\":$size}"
  done; done
}
)" + body);
    ::chmod(benchmark.c_str(), 0755);
    std::filesystem::create_directory(scratch_ / "07");
    for (const std::filesystem::path program : {PATH_rdma_bw, PATH_rdma_tune}) {
      std::filesystem::remove(scratch_ / "07" / program.filename());
      std::filesystem::create_symlink(program, scratch_ / "07" / program.filename());
    }
    if (std::ranges::find(words, "--launch") == words.end()) words.insert(words.begin(), {"--launch", "env RANKS={n}"});
    words.insert(words.begin(), {scratch_ / "07/rdma_bw", "--baseline", "0", "--sysfs", sys, "--backend", "mpi"});
    return multinode::testing::run(words, {{"OMPI_MCA_pml", ""}});
  }

  multinode::testing::TemporaryFolder scratch_;
};

// The results that the tutorial's programs stored, in GB/s, are its table in Gbit/s.
TEST_F(RdmaBw, PrintsTheTutorialsTable) {
  const Result result = bw("mlx5-pairs", R"(case $half$RANKS in
  rdma16) results 16 8.154 15.289 ;;
  tcp16) results 16 1.939 3.635 ;;
  rdma32) results 32 4.914 9.522 ;;
  tcp32) results 32 1.944 3.767 ;;
esac
)" + right,
                           {"--processes", "16,32"});
  EXPECT_EQ(result.status, 0) << result.all();
  EXPECT_EQ(result.out,
            "processes  RDMA busbw    algbw  over         no RDMA busbw    algbw  over         ratio\n"
            "       16       122.3     65.2  rdma                  29.1     15.5  tcp            4.2\n"
            "       32        76.2     39.3  rdma                  30.1     15.6  tcp            2.5\n"
            "busbw and algbw: Gbit/s at 1000000 bytes\n");
}

TEST_F(RdmaBw, SaysWhatWentWrong) {
  const struct {
    std::string tree, body, why;
    int status;
  } cases[] = {
      {"mlx5-pairs", "results 2 1 1; " + over_tcp, "2 processes: RDMA was not used (tcp)", 1},
      {"mlx5-pairs", "results 2 1 1; " + over_rdma, "2 processes: the run without RDMA used RDMA", 1},
      {"mlx5-pairs", "results 2 1 1", "2 processes: RDMA was not used (no-traffic)", 1},
      {"two-indices", "results 2 1 1", "2 processes: the counters cannot tell", 3},
      {"no-device", "results 16 1.939 3.635",
       "       16           -        -  -                     29.1     15.5  no-traffic       -\n"
       "busbw and algbw: Gbit/s at 1000000 bytes\nno usable RDMA port here: only the run without RDMA was made\n",
       77},
      {"no-device", "exit 5", "rdma_bw: the benchmark ended with exit status 5\n", 1},
      {"no-device", "exit 77", "rdma_bw: the benchmark lacks its hardware (exit status 77); see --backend\n", 77},
      {"no-device", "results 1 1 null", "rdma_bw: the benchmark printed no bandwidth", 1},
      {"no-device", "exec sleep 100", "rdma_bw: the benchmark did not end within --timeout, 3 s\n", 1},
  };
  for (const auto& one : cases) {
    const Result result = bw(one.tree, one.body, {"--timeout", "3"});
    EXPECT_EQ(result.status, one.status) << one.body << result.all();
    EXPECT_SAYS(result.all(), one.why);
  }
}

// Each process asks for its node's settings, in both halves.
TEST_F(RdmaBw, GivesEachHalfItsVariables) {
  const std::string folder = scratch_.path().string();
  const Result result =
      bw("ipv4-link-local", "env > " + folder + "/$half; echo \"$@\" > " + folder + "/words; results 2 1 1",
         {"--launch", R"(env A="b 'c'" 'D=e "f"' G=h\ i)", "--", "-b", "1K", "-e", "4M"});
  EXPECT_EQ(result.status, 3) << result.all();
  const auto contents = [&](const std::string& name) { return "\n" + multinode::testing::text_of(scratch_ / name); };
  EXPECT_EQ(contents("words"), "\n--backend mpi --json /dev/stdout -b 1K -e 4M\n");
  for (const char* variable : {"\nNCCL_IB_ADDR_RANGE=10.1.0.0/24\n", "\nUCX_IB_GID_INDEX=5\n", "\nOMPI_MCA_pml=ucx\n",
                               "\nA=b 'c'\n", "\nD=e \"f\"\n", "\nG=h i\n"})
    EXPECT_SAYS(contents("rdma"), variable);
  for (const char* variable : {"\nNCCL_IB_DISABLE=1\n", "\nNCCL_SOCKET_IFNAME==rail0\n", "\nUCX_NET_DEVICES=rail0\n"})
    EXPECT_SAYS(contents("tcp"), variable);
  EXPECT_PRED_FORMAT2(IsNotSubstring, "NCCL_IB_ADDR", contents("tcp"));
}

TEST_F(RdmaBw, RefusesABadCommandLineInOneLine) {
  const struct {
    std::vector<std::string> words;
    std::string why;
  } cases[] = {
      {{"--launch", "env", "--processes", "2,4"}, "--processes has several numbers, but --launch has no {n}"},
      {{"--processes", "2,,4"}, "--processes must be numbers such as 2,4,8, not '2,,4'"},
      {{"--backend", "gloo"}, "--backend must be nccl or mpi, not 'gloo'"},
      {{"--timeout", "soon"}, "--timeout must be a number of seconds, not 'soon'"},
      {{"--sysfs", "/no/such"}, "rdma_tune cannot read /no/such"},
      {{"--launch"}, "--launch needs a value; see --help"},
      {{"stray"}, "unknown argument 'stray'; see --help"},
  };
  for (const auto& one : cases) {
    const Result result = bw("no-device", "results 2 1 1", one.words);
    EXPECT_EQ(result.status, 2) << result.all();
    EXPECT_EQ(result.err, "rdma_bw: " + one.why + "\n");
    EXPECT_EQ(result.out, "");
  }
}

#if defined(MULTINODE_HAVE_MPI) && defined(PATH_all_reduce_perf)
TEST_F(RdmaBw, UnderstandsTheRealBenchmark) {
  std::string launch;
  for (const std::string& word : multinode::testing::under_mpirun(3, {})) launch += word + " ";
  const Result result = bw("no-device", "exec '" PATH_all_reduce_perf "' \"$@\"",
                           {"--launch", launch, "--", "-b", "8", "-e", "64K", "-f", "8192", "-n", "3"});
  EXPECT_EQ(result.status, 77) << result.all();
  EXPECT_SAYS(result.out, "\n        3           -        -  -  ");
  EXPECT_SAYS(result.out, "\nbusbw and algbw: Gbit/s at 65536 bytes\n");
}
#endif

}  // namespace rdma_bw_test
