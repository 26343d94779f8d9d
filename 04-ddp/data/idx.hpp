// idx.hpp: files in the IDX format of the MNIST data sets, plain or compressed by gzip.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

namespace data {

// An array of bytes; the last dimension varies fastest.
struct Idx {
  std::vector<std::size_t> dimensions;
  std::vector<std::uint8_t> values;
};

// The format: two zero bytes, the element type (8: unsigned byte, the only one taken here), the number of dimensions,
// each dimension in 4 bytes, high byte first; then the elements, at most `most`, and nothing behind them. Throws
// multinode::UsageError if the file cannot be read, and std::runtime_error, one line that names the file, for what is
// wrong in it. Allocates no more than twice what the file holds, whatever its header says.
Idx read_idx(const std::filesystem::path& path, std::size_t most);

}  // namespace data
