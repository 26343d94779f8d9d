// rendezvous_file.hpp: rank 0 publishes its store's endpoint and token in a file on a shared file system (--rendezvous
// file:PATH).
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/launch/endpoint.hpp>

#include <chrono>
#include <filesystem>
#include <string>

namespace multinode {

// Writes the file atomically, readable by its owner only, and replaces that of an earlier run. `attempt` separates
// runs (see launch.hpp). Both functions throw UsageError, which names the file, on an I/O error and if the file is not
// a rendezvous file, or belongs to or is open to another user; such a file is left unchanged.
void write_place(const std::filesystem::path& file, const std::string& attempt, const StorePlace& place);

// Waits for the file of this attempt; throws StoreTimeout after `timeout`.
StorePlace read_place(const std::filesystem::path& file, const std::string& attempt, std::chrono::milliseconds timeout);

}  // namespace multinode
