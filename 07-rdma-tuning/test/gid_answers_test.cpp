// Compares rdma_tune's restatement of NCCL's choice with recorded answers of NCCL's own functions. Each line of
// gid-answers.jsonl has GID tables, NCCL's variables, and the answer for each of 12 versions, of which eight count
// here:
//   tree     [{device, port, link_layer, state (absent: ACTIVE), slots, gids: [{index, gid, type, ndev, hidden}]}]
//            type: v1, v2, an error of reading it (EINVAL ...), or the file's text; slots that are not listed are empty
//   env      NCCL's variables
//   answers  [{nccl: versions, answer: {"device:port": index}}]; null: no index is used; "error: ..." of the call that
//            fails; "undefined: A or B"; "truncated: 300 to 44"; {"*": "crash: SIGSEGV"}. Unused ports are left out.
// NCCL's functions were taken unchanged from its source; only the calls of libibverbs and the files were replaced.
#include "rdma_tune/nccl_gid.hpp"
#include "rdma_tune/options.hpp"
#include "tree.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/text.hpp>

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <map>

namespace gid_answers_test {

using nlohmann::json;
using rdma::NcclVersion, rdma::parse_nccl_version;

rdma::Gid gid_of(const json& slot) {
  static const std::map<std::string, int> errors{
      {"EINVAL", EINVAL}, {"EIO", EIO}, {"ENOENT", ENOENT}, {"EACCES", EACCES}, {"EPERM", EPERM}};
  rdma::Gid gid;
  gid.index = slot.at("index");
  EXPECT_EQ(inet_pton(AF_INET6, slot.at("gid").get<std::string>().c_str(), gid.address.data()), 1) << slot;
  const std::string type = slot.at("type");
  if (type == "v1" || type == "RoCE v1") gid.type = rdma::GidType::roce_v1;
  if (type == "v2") gid.type = rdma::GidType::roce_v2;
  if (const auto error = errors.find(type); error != errors.end()) gid.type_error = error->second;
  return gid;
}

rdma::System system_of(const json& tree) {
  rdma::System system;
  for (const json& one : tree) {
    if (system.devices.empty() || system.devices.back().name != one.at("device").get<std::string>())
      system.devices.emplace_back().name = one.at("device");
    rdma::Port& port = system.devices.back().ports.emplace_back();
    port.number = one.at("port");
    port.state = one.value("state", "ACTIVE");
    port.slots = one.at("slots");
    const std::string layer = one.at("link_layer");
    if (layer == "Ethernet") port.link_layer = rdma::LinkLayer::ethernet;
    if (layer == "InfiniBand") port.link_layer = rdma::LinkLayer::infiniband;
    for (const json& slot : one.at("gids")) port.gids.push_back(gid_of(slot));
  }
  return system;
}

// The recorded answer of a port in the words of the column.
std::string column_of(const json& answer, const rdma::Port& port) {
  const std::string text = answer.is_string() ? answer.get<std::string>() : answer.dump();
  if (text.starts_with("undefined")) return rdma::may_fail;
  if (text.starts_with("error")) return "fails";
  if (port.link_layer == rdma::LinkLayer::infiniband) return "used";
  // The queue pair gets 8 bits of the index: "truncated: 300 to 44".
  return text.starts_with("truncated: ") ? text.substr(11, text.find(' ', 11) - 11) : text;
}

// "may fail" also stands for an error that comes after NCCL has read what is undefined.
bool agree(const std::vector<rdma::NcclPort>& ports, const json& answer) {
  if (answer.contains("*")) return std::ranges::find(ports, "fails", &rdma::NcclPort::takes) != ports.end();
  return ports.size() == answer.size() && std::ranges::all_of(ports, [&](const rdma::NcclPort& one) {
           const auto recorded = answer.find(one.device->name + ":" + std::to_string(one.port->number));
           const std::string column = recorded == answer.end() ? "" : column_of(*recorded, *one.port);
           return one.takes == column || (one.takes == rdma::may_fail && column == "fails");
         });
}

TEST(GidAnswers, AgreeWithNccl) {
  std::map<NcclVersion, int> agreed, may_fail;
  int lines = 0;
  std::ifstream file(RDMA_GID_ANSWERS);
  for (std::string line; std::getline(file, line); ++lines) {
    const json one = json::parse(line);
    const rdma::System system = system_of(one.at("tree"));
    multinode::Environment variables;
    for (const auto& [name, value] : one.at("env").items()) variables[name] = value;
    for (const json& answer : one.at("answers"))
      for (const std::string version : answer.at("nccl")) {
        const NcclVersion nccl = parse_nccl_version(version);
        if (nccl < NcclVersion{2, 20, 0} || nccl >= NcclVersion{2, 30, 0}) continue;
        const auto ports = nccl_ports(system, nccl, variables);
        const bool same = agree(ports, answer.at("answer"));
        agreed[nccl] += same;
        may_fail[nccl] += std::ranges::find(ports, rdma::may_fail, &rdma::NcclPort::takes) != ports.end();
        EXPECT_TRUE(same) << one.at("name") << ' ' << one.at("env") << ", NCCL " << version << ": not "
                          << answer.at("answer");
      }
  }
  EXPECT_EQ(lines, 3030);
  EXPECT_EQ(agreed.size(), 8U);
  for (const auto& [version, count] : agreed) {
    std::printf("NCCL %-7s %5d agree, of which %3d may fail\n", version.text().c_str(), count, may_fail[version]);
    EXPECT_EQ(count, lines) << version.text();
  }
}

TEST(GidAnswers, WhetherNcclUsesRdmaAtAll) {
  const auto tree = rdma::testing::Tree::load("infiniband-and-roce");
  const rdma::System system = rdma::read_system(tree.sys());
  const auto ports = [&](const multinode::Environment& variables) {
    return nccl_ports(system, {2, 28}, variables).size();
  };
  for (const multinode::Environment& all : {{}, multinode::Environment{{"NCCL_NET", "ib"}}}) EXPECT_EQ(ports(all), 10U);
  for (const multinode::Environment& none :
       {{{"NCCL_IB_DISABLE", "1"}}, {{"NCCL_NET", "Socket"}}, multinode::Environment{{"NCCL_IB_HCA", "^"}}})
    EXPECT_EQ(ports(none), 0U);
}

TEST(NcclVersion, ParsedAndCompared) {
  EXPECT_EQ(parse_nccl_version("2.26.2").text(), "2.26.2");
  EXPECT_EQ(parse_nccl_version("2.26").text(), "2.26");
  for (const char* text : {"2.28.3+cuda13.0", "2.28.3-1+cuda13.0"})
    EXPECT_EQ(parse_nccl_version(text).text(), "2.28.3");
  EXPECT_LT(parse_nccl_version("2.26.1"), (NcclVersion{2, 26, 2}));
  EXPECT_GE(parse_nccl_version("2.26"), (NcclVersion{2, 26, 2}));
  EXPECT_GT(parse_nccl_version("3.0"), (NcclVersion{2, 26, 2}));
  for (const char* text : {"", "2", "2.", "2.x", "v2.20", "2.20.", "2.20.1.1", "2.-1", "2..3"})
    EXPECT_THROW(parse_nccl_version(text), multinode::UsageError) << text;
}

}  // namespace gid_answers_test
