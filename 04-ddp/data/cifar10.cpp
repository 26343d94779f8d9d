#include "cifar10.hpp"

#include "../ddp/philox.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace data {
namespace {

constexpr std::size_t record_bytes = 1 + cifar10_image, most_records = 10'000;  // of a file

// Appends a file's records; returns how many.
std::size_t append(const std::filesystem::path& path, Cifar10Images& images) try {
  // The data set is the user's: so are links in it.
  multinode::ForeignFile file(path, most_records * record_bytes, multinode::Links::followed);
  const std::uint64_t bytes = file.size();
  if (bytes == 0 || bytes % record_bytes != 0)
    throw std::runtime_error(path.string() + ": " + std::to_string(bytes) + " bytes are not records of " +
                             std::to_string(record_bytes) + ": cut off, or not CIFAR-10's binary version");
  const std::size_t records = bytes / record_bytes;
  const std::size_t before = images.size();
  images.labels.resize(before + records);
  images.pixels.resize(images.labels.size() * cifar10_image);

  for (std::size_t i = 0; i < records; ++i) {
    std::uint8_t& label = images.labels[before + i];
    if (file.read(&label, 1) + file.read(images.pixels.data() + (before + i) * cifar10_image, cifar10_image) !=
        record_bytes)
      throw std::runtime_error(path.string() + ": cut off while it was read");
    if (label >= cifar10_classes)
      throw std::runtime_error(path.string() + ": label " + std::to_string(label) + " in record " + std::to_string(i) +
                               ", but there are classes 0 to 9: damaged, or not CIFAR-10's binary version");
  }
  return records;
} catch (const multinode::UsageError& error) {
  throw multinode::UsageError(error.what() + std::string("; --data must name a folder with CIFAR-10's binary version "
                                                         "(cifar-10-binary.tar.gz, unpacked)"));
}

}  // namespace

Cifar10 read_cifar10(const std::filesystem::path& folder) {
  Cifar10 both;
  std::size_t first = 0;
  for (const int number : {1, 2, 3, 4, 5}) {
    const std::filesystem::path path = folder / ("data_batch_" + std::to_string(number) + ".bin");
    const std::size_t records = append(path, both.train);
    if (number == 1) first = records;
    if (records != first)
      throw std::runtime_error(path.string() + ": " + std::to_string(records) + " images, but data_batch_1.bin has " +
                               std::to_string(first) + ": one of them is cut off");
  }
  append(folder / "test_batch.bin", both.test);
  return both;
}

Crop crop_of(const Augmentation& augmentation, std::uint32_t sample) {
  const ddp::PhiloxWords random =
      ddp::philox({sample, ddp::stream_augmentation, augmentation.epoch, 0}, augmentation.seed);
  constexpr std::uint64_t places = 2 * cifar10_padding + 1;
  return {random[0] * places >> 32, random[1] * places >> 32, random[2] >> 31 != 0};
}

void gather(const Cifar10Images& images, std::span<const std::uint32_t> samples,
            const std::optional<Augmentation>& augmentation, Batch<float>& batch) {
  constexpr std::size_t side = cifar10_side;
  batch.inputs.resize(samples.size() * cifar10_image);
  batch.targets.clear();
  batch.labels.resize(samples.size());
  batch.samples.assign(samples.begin(), samples.end());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    batch.labels[i] = images.labels.at(samples[i]);
    const Crop crop = augmentation ? crop_of(*augmentation, samples[i]) : Crop{};
    // Column x of the result is column x + crop.column - padding of the image: the part of a row that is in both.
    const std::size_t begin = cifar10_padding - std::min(crop.column, cifar10_padding);
    const std::size_t end = std::min(side, side + cifar10_padding - crop.column);
    for (std::size_t channel = 0; channel < cifar10_channels; ++channel) {
      const float scale = 1 / (255 * cifar10_deviation[channel]);
      const float black = -cifar10_mean[channel] / cifar10_deviation[channel];
      const std::uint8_t* const plane = images.pixels.data() + samples[i] * cifar10_image + channel * cifar10_plane;
      float* out = batch.inputs.data() + i * cifar10_image + channel * cifar10_plane;
      for (std::size_t y = 0; y < side; ++y, out += side) {
        std::fill_n(out, side, black);
        const std::size_t row = y + crop.row;
        if (row < cifar10_padding || row >= side + cifar10_padding) continue;
        const std::uint8_t* const from = plane + (row - cifar10_padding) * side + begin + crop.column - cifar10_padding;
        for (std::size_t x = begin; x < end; ++x) out[x] += scale * static_cast<float>(from[x - begin]);
        if (crop.mirrored) std::reverse(out, out + side);
      }
    }
  }
}

}  // namespace data
