// fashion_mnist.hpp: 60,000 images of clothes to learn from and 10,000 to test with, 28 x 28 bytes each, in 10 classes.
#pragma once

#include "batch.hpp"

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <vector>

namespace data {

inline constexpr std::size_t image_bytes = 28 * 28;
inline constexpr std::size_t classes = 10;

struct Images {
  std::vector<std::uint8_t> pixels;  // size() x image_bytes
  std::vector<std::uint8_t> labels;  // size(), each below `classes`
  std::size_t size() const { return labels.size(); }
};

struct FashionMnist {
  Images train, test;
};

// Where Debian's package dataset-fashion-mnist puts it.
inline constexpr const char* default_folder = "/usr/share/datasets/fashion-mnist";

// Reads train-images-idx3-ubyte and its three companions from `folder`, each with .gz at the end or without. Throws
// UsageError, naming folder, package and --data, for what is missing; std::runtime_error, naming the file, for what is
// damaged.
FashionMnist read_fashion_mnist(const std::filesystem::path& folder);

// Those images' pixels as inputs -1 ... 1, and their labels.
template <class T>  // float, double
void gather(const Images& images, std::span<const std::uint32_t> samples, Batch<T>& batch);

}  // namespace data
