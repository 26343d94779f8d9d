#include <multinode/store.hpp>

#include <vector>

namespace multinode {

PrefixStore::PrefixStore(std::shared_ptr<Store> store, std::string prefix)
    : store_(std::move(store)), prefix_(std::move(prefix) + "/") {}

void PrefixStore::set(const std::string& key, std::string_view value) { store_->set(prefix_ + key, value); }

std::string PrefixStore::get(const std::string& key, std::chrono::milliseconds timeout) {
  return store_->get(prefix_ + key, timeout);
}

std::int64_t PrefixStore::add(const std::string& key, std::int64_t amount) {
  return store_->add(prefix_ + key, amount);
}

void PrefixStore::wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) {
  std::vector<std::string> prefixed;
  prefixed.reserve(keys.size());
  for (const auto& key : keys) prefixed.push_back(prefix_ + key);
  store_->wait(prefixed, timeout);
}

std::string PrefixStore::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  return store_->compare_set(prefix_ + key, expected, desired);
}

}  // namespace multinode
