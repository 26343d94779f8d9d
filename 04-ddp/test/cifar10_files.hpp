// cifar10_files.hpp: small data sets in CIFAR-10's binary format for tests.
#pragma once

#include "idx_files.hpp"

#include <string>

// Record i of file f is of class (i + f) mod 10; its pixels depend on file, record, channel, row and column.
inline std::vector<std::uint8_t> cifar10_records(std::uint32_t file, std::uint32_t records) {
  std::vector<std::uint8_t> bytes;
  for (std::uint32_t i = 0; i < records; ++i) {
    bytes.push_back(static_cast<std::uint8_t>((i + file) % 10));
    for (std::uint32_t p = 0; p < 3072; ++p)
      bytes.push_back(static_cast<std::uint8_t>(((file * 131 + i) * 3083 + p) * 2654435761u >> 24));
  }
  return bytes;
}

inline void write_cifar10(const std::filesystem::path& folder, std::uint32_t records_a_file) {
  for (std::uint32_t f = 1; f <= 5; ++f)
    write_file(folder / ("data_batch_" + std::to_string(f) + ".bin"), cifar10_records(f, records_a_file));
  write_file(folder / "test_batch.bin", cifar10_records(0, records_a_file));
}
