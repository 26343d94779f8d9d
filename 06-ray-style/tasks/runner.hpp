// runner.hpp: what a process of the job task_runner does: serves the functions of a library to one client.
#pragma once

#include "functions.hpp"

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace tasks {

class Runner {
 public:
  // Listens on `host`, an address, at any free port. `functions` stays until the runner is destroyed. `log` gets a line
  // about the first stranger that was refused, on any thread. Throws std::system_error where it cannot listen.
  Runner(const Functions& functions, const std::string& host, std::string secret,
         std::function<void(const std::string&)> log);
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  std::uint16_t port() const;

  // Waits until the client has ended the call. False: the call broke, the client is gone.
  bool wait();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace tasks
