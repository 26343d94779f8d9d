#include "names.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/net/address.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/process/child_process.hpp>

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/mman.h>

#include <cstring>
#include <future>
#include <thread>

namespace node_check {

namespace {

Resolved resolve_now(const std::string& host) {
  Resolved found;
  found.host = host;
  const multinode::Addresses list = multinode::resolve({host, 0}, 0, found.error);
  for (const addrinfo* address = list.get(); address; address = address->ai_next)
    found.addresses.push_back(multinode::number_text(address->ai_addr, address->ai_addrlen));
  found.loopback = list && multinode::is_loopback(found.addresses.front());
  return found;
}

// Why the login failed; "": it did not.
std::string log_in_to(const std::string& host, std::chrono::seconds timeout) {
  const multinode::Descriptor nothing(multinode::check_errno(open("/dev/null", O_RDWR | O_CLOEXEC), "/dev/null")),
      errors(multinode::check_errno(memfd_create("ssh", MFD_CLOEXEC), "memfd_create"));
  multinode::ChildProcess ssh(
      {.arguments = {"ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5", "--", host, "true"},
       .descriptors = {nothing.get(), nothing.get(), errors.get()}});
  const auto start = std::chrono::steady_clock::now();
  while (!ssh.poll()) {
    if (std::chrono::steady_clock::now() > start + timeout)  // the destructor kills ssh
      return "no answer within " + multinode::to_text(timeout);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (!ssh.ending()->failed()) return "";
  const auto said = multinode::read_text("/proc/self/fd/" + std::to_string(errors.get()));
  if (!said) return "exit status " + std::to_string(ssh.ending()->as_exit_status());
  return said->substr(said->find_last_of("\r\n") + 1);  // the last line is the reason
}

}  // namespace

Resolved resolve(const std::string& host, std::chrono::milliseconds timeout) {
  auto answer = std::make_shared<std::promise<Resolved>>();
  auto future = answer->get_future();
  std::thread([answer, host] { answer->set_value(resolve_now(host)); }).detach();
  if (future.wait_for(timeout) == std::future_status::ready) return future.get();
  return {.host = host, .error = "no answer within " + multinode::to_text(timeout)};
}

Finding judge_names(const std::string& own, const std::vector<Resolved>& all) {
  std::string wrong, note;
  int failures = 0;
  for (const Resolved& one : all) {
    if (one.addresses.empty()) {
      ++failures;
      add(all.size() > 1 ? wrong : note, one.host + " has no address here (" + one.error + ")");
    } else if (one.host != own && one.loopback) {
      ++failures;
      add(wrong, one.host + " is " + one.addresses.front() + " here, which is this node itself");
    }
  }
  Finding finding{"name_resolution", failures, "names", "equal", wrong.empty(), note};
  if (!wrong.empty()) finding.why = wrong + ": put the nodes into /etc/hosts or the name service, the same on all";
  return finding;
}

Finding log_in(const std::vector<std::string>& hosts, std::chrono::seconds timeout) try {
  if (hosts.empty()) return absent("ssh", "no other node");
  std::string wrong;
  int failures = 0;
  for (const std::string& host : hosts)
    if (const std::string why = log_in_to(host, timeout); !why.empty()) {
      add(wrong, host + ": " + why);
      ++failures;
    }
  Finding finding{"ssh", failures, "hosts", "equal", failures == 0, std::to_string(hosts.size()) + " logins"};
  if (failures)
    finding.why = "cannot log in to " + wrong +
                  ": mpirun starts its daemons so; keys and known hosts are needed, with no question";
  return finding;
} catch (const multinode::StartError& error) {
  return absent("ssh", std::string("cannot start ssh (") + std::strerror(error.error) +
                           "): install openssh-client, if a launcher needs it");
}

}  // namespace node_check
