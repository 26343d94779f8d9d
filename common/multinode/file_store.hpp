// file_store.hpp: the store in a file that all ranks see, for clusters where a shared file system is the one thing
// known.
#pragma once

#include <multinode/store.hpp>

#include <filesystem>

namespace multinode {

// An append-only log of records under an fcntl lock (works over NFS; flock would not). A file that something else wrote
// is refused.
class FileStore : public Store {
 public:
  // Creates the file, readable and writable by its owner alone, if it does not exist.
  explicit FileStore(std::filesystem::path path);
  ~FileStore() override;
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  void set(const std::string& key, std::string_view value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  std::int64_t add(const std::string& key, std::int64_t amount) override;
  void wait(std::span<const std::string> keys, std::chrono::milliseconds timeout) override;
  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) override;

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

}  // namespace multinode
