// Arbitrary answers for the clients of both TCP stores, over a real connection: they may throw only Store's exceptions.
#include <multinode/store/store_protocol.hpp>
#include <multinode/store/tcp_store.hpp>
#include <multinode/store/torch_store.hpp>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <thread>

using namespace multinode;
using namespace std::chrono_literals;

namespace {

int listen_on_loopback(std::uint16_t& port) {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  if (::bind(fd, reinterpret_cast<sockaddr*>(&address), size) < 0 || ::listen(fd, 16) < 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) < 0)
    std::abort();
  port = ntohs(address.sin_port);
  return fd;
}

// Our store's side of a handshake, without a token.
void shake_hands(int fd) {
  const std::string challenge(protocol::nonce_bytes, 'c'), greeting = std::string(protocol::magic) + challenge;
  ::send(fd, greeting.data(), greeting.size(), MSG_NOSIGNAL);
  std::string start(protocol::magic.size() + 4, '\0');
  if (::recv(fd, start.data(), start.size(), MSG_WAITALL) != static_cast<ssize_t>(start.size())) return;
  std::string frame(protocol::frame_length(start.substr(protocol::magic.size())), '\0');
  if (::recv(fd, frame.data(), frame.size(), MSG_WAITALL) != static_cast<ssize_t>(frame.size())) return;
  const auto proof = proof_of_server(protocol::parse_hello(frame), "", challenge);
  const std::string answer = protocol::encode(protocol::Status::done, proof);
  ::send(fd, answer.data(), answer.size(), MSG_NOSIGNAL);
}

// Sends the answers to one client and then shuts down its side, so that a client that waits for more gets an error.
void serve(int listener, const std::string& answers, bool handshake) {
  const int fd = ::accept(listener, nullptr, nullptr);
  if (fd < 0) std::abort();
  if (handshake) shake_hands(fd);
  // The client may have left: on a busy machine its 20 ms pass during the handshake.
  if (::send(fd, answers.data(), answers.size(), MSG_NOSIGNAL) < 0 && errno != EPIPE && errno != ECONNRESET)
    std::abort();
  ::shutdown(fd, SHUT_WR);
  char rest[4096];
  while (::recv(fd, rest, sizeof rest, 0) > 0) {
  }
  ::close(fd);
}

template <class Function>
void attempt(Function&& function) {
  try {
    function();
  } catch (const StoreTimeout&) {
  } catch (const StoreLost&) {
  } catch (const StoreRefused&) {
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static std::uint16_t port = 0;
  static const int listener = listen_on_loopback(port);
  if (size == 0) return 0;
  const bool torch = data[0] % 2;
  std::string answers(reinterpret_cast<const char*>(data) + 1, size - 1);
  const bool handshake = data[0] % 4 < 2;  // a valid one first
  if (handshake && torch) {
    const auto nonce = static_cast<std::uint32_t>(::getpid());
    std::string greeting;
    for (int i = 0; i < 4; ++i) greeting += static_cast<char>(nonce >> (8 * i));
    answers.insert(0, greeting);
  }
  std::thread server(serve, listener, answers, handshake && !torch);
  // Short: no time for a second attempt.
  attempt([&] {
    if (torch) {
      TorchStore store({"127.0.0.1", port}, 1ms);
      attempt([&] { store.set("k", "v"); });
      store.get("k", 1ms);
    } else {
      TcpStore store({"127.0.0.1", port}, 20ms);
      attempt([&] { store.set("k", "v"); });
      attempt([&] { store.get("k", 1ms); });
      attempt([&] { store.add("k", 1); });
      store.compare_set("k", "v", "w");
    }
  });
  server.join();
  return 0;
}
