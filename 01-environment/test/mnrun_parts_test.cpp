// The parts of mnrun.
#include <mnrun/agents.hpp>

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/node/limits.hpp>
#include <test/support/json_lines.hpp>
#include <test/support/says.hpp>

#include <cstdint>
#include <functional>
#include <iterator>
#include <sstream>
#include <tuple>

namespace mnrun_parts_test {

using mnrun::Options;
using multinode::Environment;
using multinode::UsageError;
using namespace std::chrono_literals;
using Words = std::vector<std::string>;

Words words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

Options parsed(Words words, const Environment& environment = {}) {
  words.insert(words.begin(), "mnrun");
  std::vector<const char*> argv;
  for (const auto& word : words) argv.push_back(word.c_str());
  return mnrun::parse(static_cast<int>(argv.size()), argv.data(), environment).value();
}

std::string refusal(const Words& words, const Environment& environment = {}) {
  return multinode::testing::error_text<UsageError>([&] { parsed(words, environment); });
}

// "2x8 node 1 at a:29500 c10d".
std::string summary(const Options& options) {
  return fmt::format("{}x{} node {} at {}{}", options.nodes, options.processes,
                     options.node_rank ? std::to_string(*options.node_rank) : "-",
                     options.endpoint ? to_string(*options.endpoint) : "-", options.host_is_node_0 ? "" : " c10d");
}

Environment variables(const std::string& text) {
  Environment all;
  for (const std::string& word : words(text)) all[word.substr(0, word.find('='))] = word.substr(word.find('=') + 1);
  return all;
}

// A pod whose number the operator does not set.
constexpr auto elastic = "PET_NPROC_PER_NODE=2 PET_NNODES=2 PET_RDZV_ENDPOINT=10.77.0.1:36123";

TEST(MnOptions, NodesProcessesAndTheirPlace) {
  const std::string pod =
      "PET_NODE_RANK=1 PET_NNODES=2 PET_NPROC_PER_NODE=8 RANK=1 WORLD_SIZE=16 MASTER_ADDR=job-0 MASTER_PORT=23456";
  const std::string one_per_node =
      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=1";
  const std::string several_per_node =
      "OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2";
  const std::string c10d = "--nnodes 2 --rdzv-backend c10d --rdzv-endpoint ";
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"", "", "1x1 node 0 at -"},
      {"--rdzv-endpoint localhost:0", "", "1x1 node 0 at localhost:0"},
      {"--nproc_per_node=4 --nnodes=2 --node_rank=1 --master_addr=a --master_port=1234", "", "2x4 node 1 at a:1234"},
      {c10d + "a", "", "2x1 node - at a:29500 c10d"},
      {"--nnodes 2 --node-rank 0 --master-addr [::1]", "", "2x1 node 0 at [::1]:29500"},
      {"--nnodes 2 --node-rank 0 --master-addr ::1", "", "2x1 node 0 at [::1]:29500"},
      {c10d + "[::1]:5", "", "2x1 node - at [::1]:5 c10d"},
      {c10d + "[::1]", "", "2x1 node - at [::1]:29500 c10d"},
      {"", pod, "2x8 node 1 at job-0:23456"},
      {"--nproc-per-node 2", pod, "2x2 node 1 at job-0:23456"},
      {"--standalone", pod, "1x1 node 0 at -"},
      {"--nnodes 1", pod, "1x8 node 0 at -"},
      {c10d + "b:2", elastic, "2x1 node - at b:2 c10d"},
      {"", "PET_NODE_RANK=0 PET_NNODES=1:1 PET_NPROC_PER_NODE=auto", "1xauto node 0 at -"},
      {"--master-addr a", one_per_node, "2x1 node 1 at a:29500"},
      {"--nnodes 1", several_per_node, "1x1 node 0 at -"},
      {c10d + "a", several_per_node, "2x1 node - at a:29500 c10d"},
  };
  for (const auto& [options, environment, expected] : cases)
    EXPECT_EQ(summary(parsed(words(options + " p"), variables(environment))), expected) << options << environment;
}

TEST(MnOptions, WordsAfterTheProgramAreItsArguments) {
  const Options options =
      parsed({"--nproc-per-node", "4", "--no-prefix", "prog", "--nproc-per-node", "9", "-r", "--", "x"});
  EXPECT_EQ(options.processes, "4");
  EXPECT_EQ(options.command, (Words{"prog", "--nproc-per-node", "9", "-r", "--", "x"}));
  EXPECT_EQ(parsed({"--standalone", "--", "prog", "--standalone"}).command, (Words{"prog", "--standalone"}));
}

TEST(MnOptions, TorchrunsSpellings) {
  const Options options = parsed(
      words("--master_port 1234 --rdzv_id run_7 --max_restarts 3 --log_dir /x_y --no_python --tee=3 --role trainer p"));
  EXPECT_EQ(options.master_port, 1234);
  EXPECT_EQ(options.run_id, "run_7");
  EXPECT_EQ(options.log_dir, "/x_y");
  EXPECT_EQ(options.max_restarts, 3);
  EXPECT_EQ(options.role, "trainer");
  EXPECT_EQ(options.tee, 3);
}

TEST(MnOptions, ErrorsAreOneLine) {
  const std::tuple<std::string, std::string, const char*> cases[] = {
      {"", "", "no program"},
      {"--nprocs 4 p", "", "--nprocs"},
      {"--nnodes 1:4 p", "", "('1:4') for option '--nnodes'"},
      {"--nnodes two p", "", "two"},
      {"--standalone --nnodes 2 p", "", "--standalone is for one node, but --nnodes is 2"},
      {"--node-rank 1 p", "", "--node-rank 1"},
      {"--nnodes 2 --master-addr a p", "", "--node-rank"},
      {"--nnodes 2 --node-rank 0 p", "", "--master-addr"},
      {"--nnodes 2 --node-rank 2 --master-addr a p", "", "--node-rank"},
      {"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint a:0 p", "", "port 0"},
      {"--nnodes 2 --rdzv-backend c10d --rdzv-endpoint ::1:29500 p", "", "write an IPv6 address in brackets"},
      {"--master-addr [::1 p", "", "--master-addr: '[::1'"},
      {"--rdzv-backend etcd p", "", "etcd"},
      {"--rdzv-id ../x p", "", "../x"},
      {"--rdzv-id= p", "", "--rdzv-id"},
      {"--max-restarts -1 p", "", "--max-restarts"},
      {"--master-port 70000 p", "", "70000"},
      {"--timeout nan p", "", "--timeout"},
      {"--tee 4 p", "", "--tee must be from 0 to 3"},
      {"--tee 0:1,1 p", "", "--tee"},
      {"-m train", "", "unrecognised option '-m'"},  // as all other options of torchrun
      {"--redirects 1 p", "", "unrecognised option '--redirects'"},
      {"p", "PET_NNODES=1:4", "PET_NNODES=1:4 without PET_NODE_RANK"},
      {"p", elastic, "PET_NPROC_PER_NODE=2 without PET_NODE_RANK"},
      {"p", "PBS_NODENUM=1 PBS_TASKNUM=2 PBS_JOBID=1", "the number of nodes is not known"},
      {"p", "JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=4 JSM_NAMESPACE_LOCAL_RANK=1 JSM_NAMESPACE_LOCAL_SIZE=2",
       "start one mnrun per node"},
  };
  for (const auto& [options, environment, part] : cases)
    EXPECT_SAYS(refusal(words(options), variables(environment)), part) << options << environment;
}

TEST(MnOptions, NumberOfProcesses) {
  EXPECT_EQ(mnrun::count_processes("7"), 7);
  EXPECT_EQ(mnrun::count_processes("cpu"), multinode::usable_cpus());
  for (const char* bad : {"", "0", "-1", "x", "4x", "gpus", "5000"})
    EXPECT_THROW(mnrun::count_processes(bad), UsageError);
}

mnrun::Agent agent(int node, int processes) {
  mnrun::Agent a;
  a.node = node;
  a.processes = processes;
  return a;
}

// What agents read from the store, with a value of each kind that a stranger might write there.
TEST(Messages, HostileValuesAreRefused) {
  mnrun::Agent agents[] = {agent(0, 2), agent(1, 2)};
  agents[0].run_id = "r";
  agents[0].master_address = "node0";
  agents[0].master_port = 29501;
  const std::string attempt = text_of(mnrun::attempt_of_each_node(agents)[1]), of_agent = text_of(agents[1]),
                    verdict = text_of(mnrun::Verdict{3, "rank 1 failed", true, 700ms});
  const auto refused = [](const std::string& text, const std::function<void(const std::string&)>& parse) {
    const std::string why = multinode::testing::error_text<mnrun::BadMessage>([&] { parse(text); });
    EXPECT_EQ(why.find('\n'), std::string::npos) << text;
    return why;
  };
  const auto changed = [](const std::string& text, const std::string& pointer, const nlohmann::json& value) {
    nlohmann::json object = multinode::parse_json(text);
    object.at(nlohmann::json::json_pointer(pointer)) = value;
    return multinode::json_text(object);
  };
  const auto attempt_of_1 = [&](const std::string& text) { return parse_attempt(text, agents[1], 2); };
  const auto agent_1 = [](const std::string& text) { return mnrun::parse_agent(text, 1); };
  EXPECT_EQ(attempt_of_1(attempt).first.rank, 2);
  EXPECT_EQ(text_of(attempt_of_1(attempt)), attempt);
  EXPECT_EQ(text_of(agent_1(of_agent)), of_agent);
  EXPECT_EQ(text_of(mnrun::parse_verdict(verdict)), verdict);

  const std::vector<nlohmann::json> no_numbers{-1, 1LL << 40, UINT64_MAX, 1.0, 1.5, "1", nullptr, true, {1}};
  const std::vector<nlohmann::json> no_names{"../../etc", "a/b", "..", ".hidden", "a b", std::string(300, 'x'), 7};
  for (const char* field : {"/first/rank", "/first/world_size", "/first/local_rank", "/first/local_size", "/first/node",
                            "/first/node_count", "/master/node", "/master/processes", "/master/max_restarts",
                            "/master/master_port", "/master/pid", "/error_status", "/master/error_status"})
    for (const auto& value : no_numbers) refused(changed(attempt, field, value), attempt_of_1);
  for (const auto& value : no_names)
    EXPECT_SAYS(refused(changed(attempt, "/master/run_id", value), attempt_of_1), value == 7 ? "type" : "run_id");
  for (const char* value : {"", "host; rm", "a/b", "a b"})
    refused(changed(attempt, "/master/master_address", value), attempt_of_1);
  EXPECT_SAYS(refused(changed(attempt, "/first/local_size", 7), attempt_of_1), "local_size") << "7 processes, not 2";
  EXPECT_SAYS(refused(changed(attempt, "/first/node", 0), attempt_of_1), "node") << "another node's";
  for (const char* field : {"/master", "/first", "/store_host", "/error"})
    for (const nlohmann::json& value : {nlohmann::json(7), nlohmann::json(nullptr), nlohmann::json::array()})
      refused(changed(attempt, field, value), attempt_of_1);
  refused(changed(of_agent, "/node", 0), agent_1);
  for (const char* field : {"/status", "/kill_delay_ms"})
    for (const auto& value : no_numbers)
      if (value != 1LL << 40 || field != std::string("/kill_delay_ms"))
        refused(changed(verdict, field, value), mnrun::parse_verdict);
  refused(changed(verdict, "/status", 256), mnrun::parse_verdict);
  refused(changed(verdict, "/again", 1), mnrun::parse_verdict);
  for (const char* text : {"", "{", "[]", "null", "7", "{}", "\"text\""}) {
    refused(text, attempt_of_1);
    refused(text, agent_1);
    refused(text, mnrun::parse_verdict);
  }
  // What is only printed does not drive a terminal.
  EXPECT_EQ(mnrun::parse_verdict(changed(verdict, "/text", "\x1b[2J\nx")).text, "?[2J x");
}

TEST(EnvironmentOfAProcess, HasNoVariablesOfOtherLaunchers) {
  mnrun::Agent master = agent(0, 2);
  master.run_id = "r";
  master.master_address = "127.0.0.1";
  master.master_port = 5;
  mnrun::Attempt attempt = mnrun::attempt_of_each_node({&master, 1})[0];
  attempt.number = 3;
  attempt.store = "127.0.0.1:6";
  const Options options = parsed({"--role", "trainer", "p"});
  const Environment inherited = {{"RANK", "9"},     {"HOME", "/h"},     {"OMPI_COMM_WORLD_RANK", "5"},
                                 {"PMI_RANK", "5"}, {"PMIX_RANK", "5"}, {"TORCHELASTIC_RUN_ID", "t"}};
  const auto list = mnrun::environment_of(mnrun::places(attempt.first)[1], attempt, options, inherited);
  const Words expected = words(
      "GROUP_RANK=0 GROUP_WORLD_SIZE=1 HOME=/h LOCAL_RANK=1 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "
      "MASTER_PORT=5 "
      "MNRUN_RESTART_COUNT=3 MNRUN_RUN_ID=r MNRUN_STORE=127.0.0.1:6 OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 RANK=1 "
      "ROLE_NAME=trainer "
      "ROLE_RANK=1 ROLE_WORLD_SIZE=2 TORCHELASTIC_RESTART_COUNT=3 TORCHELASTIC_RUN_ID=r WORLD_SIZE=2");
  EXPECT_EQ(list, expected);
}

TEST(EnvironmentOfAProcess, ThreadsAreTheUsersChoice) {
  const auto first_of = [](int processes) {
    const mnrun::Agent master = agent(0, processes);
    return mnrun::attempt_of_each_node({&master, 1})[0];
  };
  const auto has = [](const std::vector<std::string>& list, const std::string& entry) {
    return std::find(list.begin(), list.end(), entry) != list.end();
  };
  const Options options = parsed({"p"});
  const mnrun::Attempt one = first_of(1), two = first_of(2);
  EXPECT_FALSE(has(mnrun::environment_of(one.first, one, options, {}), "OMP_NUM_THREADS=1"));
  const auto of_two = [&](const std::string& threads) {
    return mnrun::environment_of(two.first, two, options, {{"OMP_NUM_THREADS", threads}, {"PYTHONUNBUFFERED", ""}});
  };
  for (const std::string good : {"4", "8,2"}) EXPECT_TRUE(has(of_two(good), "OMP_NUM_THREADS=" + good));
  for (const char* bad : {"", "0", "auto", "-1", "2x"}) EXPECT_TRUE(has(of_two(bad), "OMP_NUM_THREADS=1")) << bad;
  EXPECT_TRUE(has(of_two("4"), "PYTHONUNBUFFERED=")) << "the user's";
}

// As under mpirun, a progress bar moves and a prompt appears before the line ends; and each piece has its prefix.
TEST(OutputPump, PassesOnWhatHasNoLineEnd) {
  const multinode::Pipe out = multinode::make_pipe();
  mnrun::OutputPump pump(out.to.get(), out.to.get());
  const multinode::Descriptor ranks[] = {pump.add(1, "[0] ", {}), pump.add(1, "[1] ", {})};
  const auto print = [&](int rank, const std::string& text) {
    multinode::write_all(ranks[rank].get(), text, "a pipe");
    pump.serve();
  };
  const auto expect = [&](const std::string& text) {
    std::string got(text.size(), '\0');
    for (std::size_t at = 0; at < text.size();) {
      pollfd there{out.from.get(), POLLIN, 0};
      if (poll(&there, 1, pump.timeout()) > 0)
        at += static_cast<std::size_t>(read(there.fd, &got[at], text.size() - at));
      pump.serve();
    }
    EXPECT_EQ(got, text);
  };
  print(0, "\rstep 1");
  expect("\r[0] step 1");
  print(0, "\rstep 2\rstep 3");
  expect("\r[0] step 2");
  print(1, "one line\nand a prompt: ");
  expect("\n[1] one line\n\r[0] step 3\n[1] and a prompt: ");
  print(0, "\rstep 4\r");
  expect("\r[0] step 4\r");
  print(1, "answer\n\n");
  expect("\n[1] answer\n[1] \n");
  print(0, "end\r\n");
  expect("[0] end\r\n");
  EXPECT_EQ(pump.timeout(), -1);
}

}  // namespace mnrun_parts_test
