// Compares rdma_tune's restatement of NCCL's choice with recorded answers of NCCL's own functions. Each line of
// gid-answers.jsonl has GID tables, NCCL's variables, and the answer for each of 12 versions, of which nine count here:
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
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iostream>
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

json answer_of(const std::vector<rdma::NcclPort>& ports, NcclVersion nccl) {
  json answer = json::object();
  for (const auto& [device, port, gid] : ports) {
    if (gid.failure == "SIGSEGV") return {{"*", "crash: SIGSEGV"}};
    json& of_port = answer[device->name + ":" + std::to_string(port->number)];
    if (gid.failure == rdma::NcclGid::may_fail)
      of_port = gid.failure;
    else if (!gid.failure.empty())
      of_port = "error: " + gid.failure;
    else if (gid.index > 255)  // the queue pair gets 8 bits of it
      of_port = fmt::format("truncated: {} to {}", gid.index, gid.index & 255);
    else if (port->link_layer != rdma::LinkLayer::infiniband || nccl >= NcclVersion{2, 22, 0})
      of_port = gid.index;
  }
  return answer;
}

// The same answer; "may fail" stands for "undefined", and for an error that comes after NCCL read what is undefined.
bool agree(const json& got, json recorded) {
  for (auto& [port, answer] : recorded.items())
    if (const std::string text = answer.dump();
        text.starts_with("\"undefined") ||
        (text.starts_with("\"error") && got.value(port, json()) == rdma::NcclGid::may_fail))
      answer = rdma::NcclGid::may_fail;
  return got == recorded;
}

TEST(GidAnswers, AgreeWithNccl) {
  struct Counts {
    int agree = 0, disagree = 0, may_fail = 0;
  };
  std::map<NcclVersion, Counts> counts;
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
        if (nccl < NcclVersion{2, 20, 0}) continue;
        const json got = answer_of(nccl_ports(system, nccl, variables), nccl);
        const bool same = agree(got, answer.at("answer"));
        const bool may_fail = got.dump().find(rdma::NcclGid::may_fail) != std::string::npos;
        ++(!same ? counts[nccl].disagree : may_fail ? counts[nccl].may_fail : counts[nccl].agree);
        if (!same)
          std::cout << one.at("name") << ' ' << one.at("env") << ", NCCL " << version << ": " << got << ", not "
                    << answer.at("answer") << '\n';
      }
  }
  EXPECT_EQ(lines, 3030);
  EXPECT_EQ(counts.size(), 9U);
  std::printf("NCCL     agree  may fail  disagree\n");
  for (const auto& [version, of] : counts) {
    std::printf("%-7s  %5d  %8d  %8d\n", version.text().c_str(), of.agree, of.may_fail, of.disagree);
    EXPECT_EQ(of.disagree, 0) << version.text();
    EXPECT_EQ(of.agree + of.may_fail + of.disagree, lines) << version.text();
  }
}

TEST(GidAnswers, WhetherNcclUsesRdmaAtAll) {
  const auto tree = rdma::testing::Tree::load("infiniband-and-roce");
  const rdma::System system = rdma::read_system(tree.sys());
  const auto ports = [&](const multinode::Environment& variables) {
    return nccl_ports(system, {2, 28}, variables).size();
  };
  for (const multinode::Environment& all :
       {{}, {{"NCCL_NET", "ib"}}, multinode::Environment{{"NCCL_SOCKET_IFNAME", "eth"}}})
    EXPECT_EQ(ports(all), 10U);
  for (const multinode::Environment& none :
       {{{"NCCL_IB_DISABLE", "1"}}, {{"NCCL_NET", "Socket"}}, multinode::Environment{{"NCCL_IB_HCA", "^"}}})
    EXPECT_EQ(ports(none), 0U);
  EXPECT_EQ(ports({{"NCCL_SOCKET_IFNAME", "nope"}}), 0U) << "NCCL fails";
}

TEST(NcclVersion, ParsedAndCompared) {
  EXPECT_EQ(parse_nccl_version("2.26.2").text(), "2.26.2");
  EXPECT_EQ(parse_nccl_version("2.26").text(), "2.26");
  for (const char* text : {"2.28.3+cuda13.0", "2.28.3-1+cuda13.0"})
    EXPECT_EQ(parse_nccl_version(text).text(), "2.28.3");
  EXPECT_LT(parse_nccl_version("2.26.1"), (NcclVersion{2, 26, 2}));
  EXPECT_GE(parse_nccl_version("2.26"), (NcclVersion{2, 26, 2}));
  EXPECT_GT(parse_nccl_version("3.0"), (NcclVersion{2, 26, 2}));
  for (const char* text : {"", "2", "2.", "2.x", "v2.20", "2.20.", "2.20.1.1", "2.-1", "2.20-1", "2..3"})
    EXPECT_THROW(parse_nccl_version(text), multinode::UsageError) << text;
}

}  // namespace gid_answers_test
