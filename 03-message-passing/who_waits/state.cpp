// RankState as MessagePack, in which the who_waits process of each rank sends it to rank 0.
#include "verdict.hpp"

namespace who_waits {

using nlohmann::json;

static void to_json(json& out, const Call& c) {
  out = {c.kind, c.peer, c.tag, c.root, c.receive_peer, c.receive_tag, c.communicator, c.sequence, c.bytes};
}
static void from_json(const json& in, Call& c) {
  in.at(0).get_to(c.kind), in.at(1).get_to(c.peer), in.at(2).get_to(c.tag), in.at(3).get_to(c.root);
  in.at(4).get_to(c.receive_peer), in.at(5).get_to(c.receive_tag), in.at(6).get_to(c.communicator);
  in.at(7).get_to(c.sequence), in.at(8).get_to(c.bytes);
}
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Wait, call, requests, all_requests, seconds)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(CommunicatorState, id, collectives, size, rank, of_nccl, history)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Traffic, communicator, peer, tag, sent, received)

std::string packed(const RankState& s) {
  json out = {{"rank", s.rank},
              {"host", s.host},
              {"pid", s.pid},
              {"recorded", s.recorded},
              {"finalized", s.finalized},
              {"process", static_cast<int>(s.process)},
              {"quiet", s.quiet},
              {"other_thread", s.other_thread},
              {"incomplete", s.incomplete},
              {"unknown_calls", s.unknown_calls},
              {"waits", s.waits},
              {"outstanding", s.outstanding},
              {"communicators", s.communicators},
              {"traffic", s.traffic},
              {"stack", s.stack},
              {"world_size", s.world_size}};
  if (s.ended) out["ended"] = *s.ended;
  if (s.polled) out["polled"] = *s.polled;
  std::string text;
  json::to_msgpack(out, text);
  return text;
}

RankState unpacked(const std::string& text) {
  const json in = json::from_msgpack(text);
  RankState s;
  in.at("rank").get_to(s.rank), in.at("host").get_to(s.host), in.at("pid").get_to(s.pid);
  in.at("recorded").get_to(s.recorded), in.at("finalized").get_to(s.finalized);
  s.process = static_cast<char>(in.at("process").get<int>());
  in.at("quiet").get_to(s.quiet), in.at("other_thread").get_to(s.other_thread);
  in.at("incomplete").get_to(s.incomplete), in.at("unknown_calls").get_to(s.unknown_calls);
  in.at("waits").get_to(s.waits), in.at("outstanding").get_to(s.outstanding);
  in.at("communicators").get_to(s.communicators), in.at("traffic").get_to(s.traffic);
  in.at("stack").get_to(s.stack), in.at("world_size").get_to(s.world_size);
  if (in.contains("ended")) s.ended = in["ended"].get<int>();
  if (in.contains("polled")) s.polled = in["polled"].get<Call>();
  return s;
}

}  // namespace who_waits
