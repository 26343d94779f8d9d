// gloo_store.hpp: rendezvous for Gloo: the address to listen on, and a TcpStore as Gloo's store. For programs
// that link Gloo.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/store/tcp_store.hpp>
#include <multinode/world/world.hpp>

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <string>
#include <vector>

namespace multinode {

// Keys begin with "gloo/". `timeout` is the default of wait() and that of get(). `store` must outlive it.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(TcpStore& store, std::chrono::milliseconds timeout) : store_(store), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set("gloo/" + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string data = store_.get("gloo/" + key, timeout_);
    return {data.begin(), data.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    Deadline deadline(timeout);
    for (const std::string& key : keys) store_.get("gloo/" + key, deadline.all_left());
  }

 private:
  TcpStore& store_;
  std::chrono::milliseconds timeout_;
};

// Collective. The address at which the other ranks reach this process, for gloo::transport::tcp::attr: loopback if
// all ranks are in one network namespace, else this machine's address on the route to the others. It does not resolve
// this machine's own name, which may be loopback. Throws UsageError if there is no such address.
std::string gloo_address(World& world);

}  // namespace multinode
