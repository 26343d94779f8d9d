// state_folder.hpp: the folder in which the head, the nodes and the clients of a user find each other: --state DIR.
#pragma once

#include <multinode/base/descriptor.hpp>
#include <multinode/launch/endpoint.hpp>

#include <filesystem>
#include <string>

namespace cluster {

// All functions throw UsageError, which names the folder or the file.
class StateFolder {
 public:
  // Makes the folder, with mode 0700, if it does not exist. Refuses one that belongs to another user, or that other
  // users can read.
  explicit StateFolder(std::filesystem::path path);
  static std::filesystem::path default_path();  // ~/.multinode-cluster

  const std::filesystem::path& path() const { return path_; }
  std::filesystem::path records() const { return path_ / "jobs"; }  // what jobs wrote

  // For a head: fails while another one, here or on another host that sees this folder, has it.
  multinode::Descriptor lock() const;

  void write_key(const std::string& key) const { write("key.pem", key); }
  std::string read_key() const;
  void write_address(const multinode::Endpoint& head) const { write("address", to_string(head) + "\n"); }
  multinode::Endpoint read_address() const;

 private:
  void write(const std::string& name, const std::string& text) const;

  std::filesystem::path path_;
};

}  // namespace cluster
