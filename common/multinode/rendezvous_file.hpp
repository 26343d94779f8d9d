// rendezvous_file.hpp: where rank 0's store is, in a file that all ranks see: for clusters where a shared file system
// is the one thing known.
#pragma once

#include <multinode/endpoint.hpp>

#include <chrono>
#include <filesystem>
#include <string>

namespace multinode::detail {

// The file appears at once and as a whole, for its owner alone, in place of one that an earlier run has left. Both
// throw UsageError, naming the file, for one that is something else, which stays as it is, and for a folder or a disk
// that refuses. `generation` tells runs apart: see launch.hpp.
void write_endpoint(const std::filesystem::path& file, const std::string& generation, const Endpoint& endpoint);

// Waits for the file of this generation; throws StoreTimeout when `timeout` has passed.
Endpoint read_endpoint(const std::filesystem::path& file, const std::string& generation,
                       std::chrono::milliseconds timeout);

}  // namespace multinode::detail
