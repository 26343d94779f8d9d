#include "data/cifar10.hpp"
#include "cifar10_files.hpp"

#include <multinode/base/check.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <tuple>

namespace cifar10_test {

using data::Augmentation;
using data::Crop;

TEST(Cifar10, ReadsFiveFilesAndTheTest) {
  const TemporaryFolder folder;
  write_cifar10(folder.path(), 3);
  const data::Cifar10 read = data::read_cifar10(folder.path());
  ASSERT_EQ(read.train.size(), 15u);
  ASSERT_EQ(read.test.size(), 3u);
  for (std::uint32_t i = 0; i < 18; ++i) {
    const bool train = i < 15;
    const std::uint32_t file = train ? i / 3 + 1 : 0, record = i % 3;
    const data::Cifar10Images& images = train ? read.train : read.test;
    const auto at = static_cast<std::ptrdiff_t>(train ? i : record);
    const auto bytes = cifar10_records(file, 3);
    const auto expected = bytes.begin() + record * 3073;
    EXPECT_EQ(images.labels[static_cast<std::size_t>(at)], expected[0]);
    EXPECT_TRUE(std::equal(expected + 1, expected + 3073, images.pixels.begin() + at * 3072)) << "image " << i;
  }
}

template <class Error>
void expect_refused(const std::filesystem::path& folder, const std::string& says) {
  EXPECT_SAYS(multinode::testing::error_text<Error>([&] { data::read_cifar10(folder); }), says);
}

TEST(Cifar10, NamesTheFileThatIsWrong) {
  const TemporaryFolder folder;
  write_cifar10(folder.path(), 2);
  const auto file = [&](const std::string& name) { return folder / name; };
  const auto says = [&](const std::string& name, const std::string& what) { return file(name).string() + what; };

  expect_refused<multinode::UsageError>(file("nowhere"),
                                        "cannot read " + says("nowhere", "/data_batch_1.bin: No such"));
  std::filesystem::resize_file(file("data_batch_3.bin"), 3072);
  expect_refused<std::runtime_error>(folder.path(),
                                     says("data_batch_3.bin", ": 3072 bytes are not records of 3073: cut off"));
  std::filesystem::resize_file(file("data_batch_3.bin"), 3073);  // between two records
  expect_refused<std::runtime_error>(folder.path(),
                                     says("data_batch_3.bin", ": 1 images, but data_batch_1.bin has 2: one of them"));
  std::filesystem::resize_file(file("data_batch_3.bin"), 3073'000'000);  // whole records, and nothing on the disk
  expect_refused<multinode::UsageError>(
      folder.path(), says("data_batch_3.bin", ": 3073000000 bytes, and at most 30730000 are read; --data must name"));
  auto bytes = cifar10_records(4, 2);
  bytes[3073] = 10;
  write_cifar10(folder.path(), 2);
  write_file(file("data_batch_4.bin"), bytes);
  expect_refused<std::runtime_error>(folder.path(), says("data_batch_4.bin", ": label 10 in record 1, but"));
}

data::Cifar10Images some_images() {
  data::Cifar10Images images;
  const auto bytes = cifar10_records(7, 40);
  for (std::size_t i = 0; i < 40; ++i) {
    images.labels.push_back(bytes[i * 3073]);
    const auto first = bytes.begin() + static_cast<std::ptrdiff_t>(i * 3073 + 1);
    images.pixels.insert(images.pixels.end(), first, first + 3072);
  }
  return images;
}

// Pixel (row, column) of a plane in the padded image, by the definition.
double padded(const data::Cifar10Images& images, std::size_t image, std::size_t channel, std::size_t row,
              std::size_t column) {
  if (row < 4 || row >= 36 || column < 4 || column >= 36) return 0;
  return images.pixels[image * 3072 + channel * 1024 + (row - 4) * 32 + column - 4];
}

void expect_gathered(const std::optional<Augmentation>& augmentation) {
  const data::Cifar10Images images = some_images();
  std::vector<std::uint32_t> samples(40);
  std::iota(samples.rbegin(), samples.rend(), 0);
  data::Batch<float> batch;
  batch.targets = {1};  // of an earlier use
  data::gather(images, samples, augmentation, batch);
  ASSERT_EQ(batch.size(), 40u);
  ASSERT_EQ(batch.inputs.size(), 40u * 3072);
  EXPECT_TRUE(batch.targets.empty());
  EXPECT_EQ(batch.samples, samples);
  constexpr double mean[] = {.4914, .4822, .4465}, deviation[] = {.2023, .1994, .2010};
  double largest = 0;
  for (std::size_t i = 0; i < 40; ++i) {
    EXPECT_EQ(batch.labels[i], images.labels[samples[i]]);
    const Crop crop = augmentation ? data::crop_of(*augmentation, samples[i]) : Crop{4, 4, false};
    for (std::size_t c = 0; c < 3; ++c)
      for (std::size_t y = 0; y < 32; ++y)
        for (std::size_t x = 0; x < 32; ++x) {
          const double pixel = padded(images, samples[i], c, y + crop.row, (crop.mirrored ? 31 - x : x) + crop.column);
          const double expected = (pixel / 255 - mean[c]) / deviation[c];
          largest = std::max(largest, std::abs(batch.inputs[i * 3072 + c * 1024 + y * 32 + x] - expected));
        }
  }
  EXPECT_LT(largest, 1e-6) << "a few roundings of numbers below 5";
}

TEST(Cifar10, GathersImagesAsTheyAre) { expect_gathered({}); }
TEST(Cifar10, GathersAugmentedImages) { expect_gathered(Augmentation{5, 2}); }

TEST(Cifar10, CropsGoFromEdgeToEdge) {
  std::set<std::tuple<std::size_t, std::size_t, bool>> seen;
  for (std::uint32_t i = 0; i < 5000; ++i) {
    const Crop crop = data::crop_of({1, 3}, i);
    ASSERT_TRUE(crop.row <= 8 && crop.column <= 8);
    seen.insert({crop.row, crop.column, crop.mirrored});
  }
  EXPECT_EQ(seen.size(), 9u * 9 * 2);
}

}  // namespace cifar10_test
