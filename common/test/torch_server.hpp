// torch_server.hpp: runs the server of the real torch.distributed.TCPStore in a Python process.
#pragma once

#include <multinode/tcp_store.hpp>
#include <testing/program_test.hpp>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <stdexcept>
#include <string>

namespace multinode::testing {

class TorchServer {
 public:
  // The Python of a virtual environment with torch: MULTINODE_TORCH, by default ~/.cache/multinode/torch.
  static std::string python() {
    const char* named = std::getenv("MULTINODE_TORCH");
    const char* home = std::getenv("HOME");
    return (named ? std::string(named) : std::string(home ? home : "") + "/.cache/multinode/torch") + "/bin/python";
  }
  static bool installed() { return std::filesystem::exists(python()); }
  static std::string why_not() {
    return "no PyTorch: " + python() + " does not exist (set MULTINODE_TORCH to another virtual environment)";
  }

  explicit TorchServer(bool use_libuv)
      : process_({python(), "-c",
                  "import datetime, signal, torch, torch.distributed as d\n"
                  "s = d.TCPStore('127.0.0.1', 0, None, True, datetime.timedelta(seconds=60), wait_for_workers=False,"
                  " use_libuv=" +
                      std::string(use_libuv ? "True" : "False") +
                      ")\n"
                      "print('torch', torch.__version__, 'port', s.port, flush=True)\n"
                      "signal.pause()"}) {
    const auto match = process_.wait_for("torch (\\S+) port ([0-9]+)", std::chrono::seconds(90));
    if (!match)
      throw std::runtime_error("torch's server did not start: " + process_.wait(std::chrono::seconds(1)).all());
    version_ = (*match)[1];
    port_ = static_cast<std::uint16_t>(std::stoi((*match)[2]));
  }

  Endpoint endpoint() const { return {"127.0.0.1", port_}; }
  const std::string& version() const { return version_; }
  Process& process() { return process_; }

  static TorchServer& shared(bool use_libuv) {
    static std::unique_ptr<TorchServer> servers[2];
    auto& server = servers[use_libuv ? 1 : 0];
    if (!server) server = std::make_unique<TorchServer>(use_libuv);
    return *server;
  }

 private:
  Process process_;
  std::string version_;
  std::uint16_t port_ = 0;
};

}  // namespace multinode::testing
