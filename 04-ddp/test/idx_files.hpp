// idx_files.hpp: small data sets for tests.
#pragma once

#include <test/support/temporary_folder.hpp>

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

using multinode::testing::TemporaryFolder;

inline std::vector<std::uint8_t> idx_bytes(const std::vector<std::uint32_t>& dimensions,
                                           const std::vector<std::uint8_t>& values) {
  std::vector<std::uint8_t> file{0, 0, 8, static_cast<std::uint8_t>(dimensions.size())};
  for (const std::uint32_t d : dimensions)
    for (const int shift : {24, 16, 8, 0}) file.push_back(static_cast<std::uint8_t>(d >> shift));
  file.insert(file.end(), values.begin(), values.end());
  return file;
}

inline std::vector<std::uint8_t> gzip_of(const std::vector<std::uint8_t>& bytes) {
  z_stream stream{};
  if (deflateInit2(&stream, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::runtime_error("deflateInit2");
  std::vector<std::uint8_t> out(deflateBound(&stream, bytes.size()) + 32);
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = out.data();
  stream.avail_out = static_cast<uInt>(out.size());
  const int code = deflate(&stream, Z_FINISH);
  out.resize(stream.total_out);
  deflateEnd(&stream);
  if (code != Z_STREAM_END) throw std::runtime_error("deflate");
  return out;
}

inline void write_file(const std::filesystem::path& path, const std::vector<std::uint8_t>& bytes) {
  std::ofstream file(path, std::ios::binary);
  if (!file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size())))
    throw std::runtime_error("cannot write " + path.string());
}

// The four files. Image i is of class i mod 10 and has a bright bar there, with some noise: easy to learn.
inline void write_data_set(const std::filesystem::path& folder, std::uint32_t train, std::uint32_t test,
                           bool compressed) {
  for (const auto& [part, count] : {std::pair{"train", train}, std::pair{"t10k", test}}) {
    std::vector<std::uint8_t> pixels, labels;
    std::uint32_t noise = 1;
    for (std::uint32_t i = 0; i < count; ++i) {
      labels.push_back(static_cast<std::uint8_t>(i % 10));
      for (std::uint32_t p = 0; p < 784; ++p) {
        noise = noise * 1664525 + 1013904223;
        pixels.push_back(static_cast<std::uint8_t>((noise >> 25) + (p / 78 == i % 10 ? 127 : 0)));
      }
    }
    const auto write = [&, part = part](const std::string& kind, const std::vector<std::uint8_t>& bytes) {
      write_file(folder / (part + kind + (compressed ? ".gz" : "")), compressed ? gzip_of(bytes) : bytes);
    };
    write("-images-idx3-ubyte", idx_bytes({count, 28, 28}, pixels));
    write("-labels-idx1-ubyte", idx_bytes({count}, labels));
  }
}
