// A process that uses a store, for tests: store_client tcp:HOST:PORT|file:PATH add KEY TIMES | will KEY VALUE |
// crowd NUMBER
#include <multinode/file_store.hpp>
#include <multinode/socket.hpp>
#include <multinode/tcp_store.hpp>

#include <cstdio>
#include <exception>
#include <string>
#include <vector>

using namespace multinode;
using namespace std::chrono_literals;

namespace {

void act(Store& store, const Endpoint& place, const std::vector<std::string>& words) {
  if (words.at(0) == "add") {
    for (int i = 0; i < std::stoi(words.at(2)); ++i) store.add(words.at(1), 1);
  } else if (words.at(0) == "will") {
    dynamic_cast<TcpStore&>(store).will(words.at(1), words.at(2));
    std::puts("ready");
    std::fflush(stdout);
    store.get("never set", 60s);
  } else if (words.at(0) == "crowd") {  // that many more connections which say nothing
    std::vector<detail::TcpClient> crowd;
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
    const auto& place = words.at(0);
    std::unique_ptr<Store> store;
    Endpoint endpoint;
    if (place.starts_with("tcp:")) {
      endpoint = parse_endpoint(place.substr(4), "store");
      store = std::make_unique<TcpStore>(endpoint, 10s);
    } else {
      store = std::make_unique<FileStore>(place.substr(5));
    }
    act(*store, endpoint, {words.begin() + 1, words.end()});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "store_client: %s\n", error.what());
    return 1;
  }
}
