// cifar10.hpp: 50,000 photographs to learn from and 10,000 to test with, 32 x 32 pixels in colour, in 10 classes; from
// the data set's binary version, https://www.cs.toronto.edu/~kriz/cifar.html
#pragma once

#include "batch.hpp"

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace data {

inline constexpr std::size_t cifar10_channels = 3, cifar10_side = 32, cifar10_classes = 10;
inline constexpr std::size_t cifar10_plane = cifar10_side * cifar10_side;
inline constexpr std::size_t cifar10_image = cifar10_channels * cifar10_plane;  // bytes of an image, inputs of a sample

struct Cifar10Images {
  std::vector<std::uint8_t> pixels;  // size() x channels x side x side: the planes red, green and blue, row by row
  std::vector<std::uint8_t> labels;  // size(), each below 10
  std::size_t size() const { return labels.size(); }
};

struct Cifar10 {
  Cifar10Images train, test;
};

// Reads data_batch_1.bin ... data_batch_5.bin and test_batch.bin from `folder`: records of a label and an image. Files
// with fewer records than the data set's 10,000 are taken, if the five have equally many. Throws UsageError, naming
// the folder, for what is missing or cannot be read; std::runtime_error, naming the file, for what is cut off or wrong.
Cifar10 read_cifar10(const std::filesystem::path& folder);

// How a training image is changed: 4 black pixels are put around it, 32 x 32 are cut out from row and column 0 ... 8,
// and half of the images are mirrored. A function of seed, epoch and the image's number alone: an image looks the same
// whichever rank has it, however many there are.
struct Augmentation {
  std::uint64_t seed = 0;
  std::uint32_t epoch = 0;
};
inline constexpr std::size_t cifar10_padding = 4;
struct Crop {
  std::size_t row = cifar10_padding, column = cifar10_padding;  // of the padded image: the image itself
  bool mirrored = false;
};
Crop crop_of(const Augmentation& augmentation, std::uint32_t sample);

// inputs: a row for each sample, channels x side x side, (pixel / 255 - mean) / standard deviation with those of the
// training images' channels, so that the padding is -mean / deviation; labels. No augmentation: the images as they are.
// Throws std::out_of_range for a sample that is not there.
inline constexpr std::array cifar10_mean = {0.4914F, 0.4822F, 0.4465F};
inline constexpr std::array cifar10_deviation = {0.2023F, 0.1994F, 0.2010F};
void gather(const Cifar10Images& images, std::span<const std::uint32_t> samples,
            const std::optional<Augmentation>& augmentation, Batch<float>& batch);

}  // namespace data
