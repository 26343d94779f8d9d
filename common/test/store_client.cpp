// A process that uses a store, for tests: store_client HOST:PORT will KEY VALUE | crowd NUMBER
#include <multinode/socket.hpp>
#include <multinode/tcp_store.hpp>

#include <cstdio>
#include <exception>
#include <list>
#include <string>
#include <vector>

using namespace multinode;
using namespace std::chrono_literals;

namespace {

void act(TcpStore& store, const Endpoint& place, const std::vector<std::string>& words) {
  if (words.at(0) == "will") {
    store.will(words.at(1), words.at(2));
    std::puts("ready");
    std::fflush(stdout);
    store.get("never set", 60s);
  } else if (words.at(0) == "crowd") {  // opens that many more connections, which send nothing
    std::list<detail::TcpClient> crowd;
    for (int i = 0; i < std::stoi(words.at(1)); ++i) crowd.emplace_back(place, 5s, [](auto&, auto) {});
    std::puts("ready");
    std::fflush(stdout);
    store.get("never set", 60s);
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::vector<std::string> words(argv + 1, argv + argc);
    const Endpoint endpoint = parse_endpoint(words.at(0), "store");
    TcpStore store(endpoint, 10s);
    act(store, endpoint, {words.begin() + 1, words.end()});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "store_client: %s\n", error.what());
    return 1;
  }
}
