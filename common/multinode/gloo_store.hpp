// gloo_store.hpp: lets Gloo's ranks find each other: the address to listen on, and a multinode::Store to tell it by.
// For programs that link Gloo.
#pragma once

#include <multinode/store.hpp>
#include <multinode/world.hpp>

#include <gloo/rendezvous/store.h>

#include <chrono>
#include <string>
#include <vector>

namespace multinode {

// `store` must outlive it.
class GlooStore : public gloo::rendezvous::Store {
 public:
  GlooStore(multinode::Store& store, std::chrono::milliseconds timeout) : store_(store), timeout_(timeout) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    store_.set("gloo/" + key, {data.data(), data.size()});
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = store_.get("gloo/" + key, timeout_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override { wait(keys, timeout_); }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& timeout) override {
    std::vector<std::string> ours;
    for (const std::string& key : keys) ours.push_back("gloo/" + key);
    store_.wait(ours, timeout);
  }

 private:
  multinode::Store& store_;
  std::chrono::milliseconds timeout_;
};

// The address by which the other ranks reach this process, for gloo::transport::tcp::attr: loopback where all ranks are
// in one network namespace, else this machine's own on the way to the others, never what its name resolves to, which
// may be loopback. Collective. Throws UsageError where there is none.
std::string gloo_address(World& world);

}  // namespace multinode
