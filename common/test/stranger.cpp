// stranger: tries to get into a job that belongs to somebody else, with all that other users of a cluster can know: the
// user's ID, the name of the run or the job's number, and where the job listens. For ci/test-cluster/strangers_test.
// usage: stranger UID RUN_ID HOST:PORT...
// Exit status: 0 no store let it in, 1 one did, 2 no store was found.
#include <multinode/launch/endpoint.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/store/torch_store.hpp>

#include <iostream>
#include <list>
#include <stdexcept>
#include <string>
#include <syncstream>
#include <thread>
#include <vector>

using namespace multinode;
using namespace std::chrono_literals;

namespace {

struct Stranger {  // at one port
  std::string user, run;
  Endpoint at;
  int refusals = 0;
  bool store = true, got_in = false;
  std::list<TcpClient> connections{};  // kept until the end

  void say(const std::string& what) const { std::osyncstream(std::cout) << to_string(at) << ": " << what << '\n'; }

  // Returns false if no store of ours answers there.
  bool knock(const protocol::Hello& hello) try {
    TcpStore store(at, 2s, hello);
    say("let in with the token '" + hello.token + "'");
    got_in = true;
    store.goodbye();
    return true;
  } catch (const RankTaken&) {
    say("believes the token '" + hello.token + "'");
    return got_in = true;
  } catch (const StoreRefused&) {
    ++refusals;
    return true;
  } catch (const std::runtime_error&) {
    return false;
  }

  void disturb() {
    const auto none = [](auto&, auto&) {};
    try {
      for (const std::string& bytes : {std::string(), std::string(1000, '\x7f'), std::string(protocol::magic),
                                       std::string(protocol::magic) + std::string(4, '\xff')}) {
        connections.emplace_back(at, 2s, none);
        Deadline deadline(2s);
        if (!bytes.empty()) connections.back().send(bytes, deadline, "disturbing");
      }
      for (int i = 0; i < 50; ++i) connections.emplace_back(at, 2s, none);
    } catch (const std::runtime_error&) {  // it defends itself
    }
  }

  // torchrun's store lets everybody in: it must not tell more than an address.
  void ask_torchrun(const std::string& generation) {
    std::string place;
    try {
      place = TorchStore(at, 2s).get("multinode/" + generation + "/store", 2s);
    } catch (const std::runtime_error&) {
      return;
    }
    say("torchrun's store says " + place);
    if (place != to_string(parse_endpoint(place, "torchrun's store"))) got_in = true;
  }

  void visit() {
    const std::vector<std::string> generations{run + "/0", "/0", "none/0"};
    const std::vector<std::string> tokens{
        "",       run,          "agents of user " + user, "agents of run " + run, "agents of run ", "job " + run + "/0",
        "job /0", "job none/0", std::string(32, '0')};
    for (const std::string& token : tokens)
      for (const std::string& generation : generations)
        for (const int rank : {-1, 1}) {
          protocol::Hello hello{.token = token, .generation = "run/" + generation, .rank = rank, .world_size = 2};
          if (rank < 0) hello = {.token = token};
          store = store && knock(hello);
        }
    if (store)
      disturb();  // not the ports of MPI, Slurm and torchrun, whose defence is theirs
    else
      for (const std::string& generation : generations) ask_torchrun(generation);
    say(store ? "a store" : "no store of ours");
  }
};

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  std::list<Stranger> strangers;
  {
    std::vector<std::jthread> visits;
    for (int i = 3; i < argc; ++i) {
      Stranger& stranger = strangers.emplace_back(Stranger{argv[1], argv[2], parse_endpoint(argv[i], "an argument")});
      visits.emplace_back([&stranger] { stranger.visit(); });
    }
  }
  int stores = 0, refusals = 0;
  bool got_in = false;
  for (const Stranger& stranger : strangers) {
    stores += stranger.store;
    refusals += stranger.refusals;
    got_in = got_in || stranger.got_in;
  }
  std::cout << stores << " stores, refused " << refusals << " times, " << (got_in ? "LET IN" : "kept out") << std::endl;
  return got_in ? 1 : stores == 0 ? 2 : 0;
}
