// idx.hpp: files in the IDX format of the MNIST data sets, plain or compressed by gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace data {

// An array of bytes; the last dimension varies fastest.
struct Idx {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> values;
};

// The format: two zero bytes, the element type (8: unsigned byte, the only one taken here), the number of dimensions,
// each dimension in 4 bytes, high byte first; then the elements, and nothing behind them. Throws std::runtime_error,
// one line that names `name` and what is wrong. Never allocates more than a small multiple of what `file` can hold.
Idx parse_idx(std::span<const std::uint8_t> file, const std::string& name);

// Throws multinode::UsageError if the file cannot be read.
Idx read_idx(const std::filesystem::path& path);

}  // namespace data
