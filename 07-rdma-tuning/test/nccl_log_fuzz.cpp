// Fuzzes the reader of NCCL's logs: any bytes, cut into pieces anywhere, give the same, bounded, printable result.
#include "rdma_tune/nccl_log.hpp"

#include <nlohmann/json.hpp>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <sstream>

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

// Beginnings of NCCL's lines, so that the fuzzer gets past them: a line's first byte chooses one.
constexpr const char* beginnings[] = {"",
                                      "NCCL version ",
                                      "h:1:2 [0] NCCL WARN ",
                                      "h:1:2 [0] NCCL INFO ",
                                      "NCCL INFO NET/IB : Using [0]",
                                      "NCCL INFO NET/IB: NCCL Dev 0 IbDev 0 Port 1 qpn 1 mtu 3 GID ",
                                      "NCCL INFO Using network ",
                                      "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via ",
                                      "NCCL INFO Channel 00/0 : 0[0] -> 1[0] [receive] via NET/",
                                      "NCCL INFO CollNet 00/0 : 1 [send] via COLLNET/"};

std::string lines_of(const std::uint8_t* data, std::size_t size) {
  std::string text;
  bool begins = true;
  for (std::size_t i = 0; i < size; ++i) {
    if (begins)
      text += beginnings[data[i] % std::size(beginnings)];
    else
      text += static_cast<char>(data[i]);
    begins = data[i] == '\n' && !begins;
  }
  return text;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::size_t piece = data[0] % 64u + 1;
  const std::string text = lines_of(data + 1, size - 1);
  std::istringstream in(text);
  const rdma::NcclLog log = rdma::read_nccl_log(in);
  rdma::NcclLog again;
  rdma::NcclLogStream stream(again);
  for (std::size_t at = 0; at < text.size(); at += piece) stream.add(std::string_view(text).substr(at, piece));
  stream.end();

  const std::string json = log.json().dump();  // throws for what is not UTF-8
  require(json == again.json().dump());
  require(log.gpu_direct <= log.over_rdma() + log.over_tcp());
  require(log.warnings.size() <= 8 && log.hcas.size() <= 1024 && log.connections.size() <= 1024);
  for (const std::string& line : rdma::summary(log))
    for (const char c : line) require(c >= 0x20 && c < 0x7f);
  return 0;
}
