#include <multinode/address.hpp>
#include <multinode/check.hpp>
#include <multinode/descriptor.hpp>
#include <multinode/gloo_store.hpp>

#include <netdb.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>

namespace multinode {

namespace {

// This machine's address on the way to `host`: that of a UDP socket connected to it, which sends nothing. "": none.
std::string address_towards(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), "9", &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> guard(found, &freeaddrinfo);
  for (const addrinfo* a = found; a; a = a->ai_next) {
    const Descriptor fd(socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
    if (!fd) continue;
    sockaddr_storage local{};
    socklen_t length = sizeof local;
    const bool known = connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0 &&
                       getsockname(fd.get(), reinterpret_cast<sockaddr*>(&local), &length) == 0;
    std::string text = known ? detail::number_text(reinterpret_cast<sockaddr*>(&local), length) : "";
    if (!text.empty() && !detail::is_loopback(text)) return text;
  }
  return "";
}

// One network namespace of one running kernel: all that say the same reach each other by loopback.
std::string network_identity() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  std::error_code error;
  return boot + " " + std::filesystem::read_symlink("/proc/self/ns/net", error).string() + " " +
         (boot.empty() || error ? host_name() : "");
}

}  // namespace

std::string gloo_address(World& world) {
  const std::vector<std::string> networks = world.gather("addresses for gloo", network_identity());
  const std::string& mine = networks[static_cast<std::size_t>(world.rank())];
  if (std::ranges::all_of(networks, [&](const std::string& other) { return other == mine; })) return "127.0.0.1";

  std::string address;
  if (const std::string& master = world.launch().master_address.value; !master.empty())
    address = address_towards(master);
  for (int r = 0; address.empty() && r < world.size(); ++r)
    if (networks[static_cast<std::size_t>(r)] != mine) address = address_towards(world.host(r));
  if (address.empty()) address = detail::interface_address();
  if (address.empty())
    throw UsageError("gloo: " + host_name() + " has no address by which other machines could reach it");
  return address;
}

}  // namespace multinode
