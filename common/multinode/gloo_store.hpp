// gloo_store.hpp: lets Gloo's ranks find each other through a multinode::Store. For programs that link Gloo.
#pragma once

#include <multinode/store.hpp>

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

}  // namespace multinode
