#include "fashion_mnist.hpp"

#include "idx.hpp"

#include <multinode/base/check.hpp>

#include <algorithm>
#include <stdexcept>
#include <string>

namespace data {
namespace {

constexpr std::size_t most_images = 250'000;  // EMNIST's digits, in the same files, are 240,000

std::filesystem::path find_file(const std::filesystem::path& folder, const std::string& name) {
  const std::string advice =
      "install the Debian package dataset-fashion-mnist, or name the folder that has the files with --data DIR";
  if (!std::filesystem::is_directory(folder))
    throw multinode::UsageError("no folder " + folder.string() + " with Fashion-MNIST: " + advice);
  for (const char* ending : {".gz", ""})
    if (const auto path = folder / (name + ending); std::filesystem::exists(path)) return path;
  throw multinode::UsageError("no " + name + ".gz in " + folder.string() + ": " + advice);
}

Images read_images(const std::filesystem::path& folder, const std::string& part) {
  const std::filesystem::path images_path = find_file(folder, part + "-images-idx3-ubyte");
  const std::filesystem::path labels_path = find_file(folder, part + "-labels-idx1-ubyte");
  Idx images = read_idx(images_path, most_images * image_bytes);
  Idx labels = read_idx(labels_path, most_images);
  if (images.dimensions.size() != 3 || images.dimensions[1] * images.dimensions[2] != image_bytes ||
      images.dimensions[1] != 28)
    throw std::runtime_error(images_path.string() + ": not images of 28 x 28");
  if (labels.dimensions.size() != 1) throw std::runtime_error(labels_path.string() + ": not a list of labels");
  if (images.dimensions[0] != labels.dimensions[0])
    throw std::runtime_error(labels_path.string() + ": " + std::to_string(labels.dimensions[0]) + " labels for " +
                             std::to_string(images.dimensions[0]) + " images");
  if (labels.values.empty()) throw std::runtime_error(images_path.string() + ": no images in it");
  const auto wrong =
      std::find_if(labels.values.begin(), labels.values.end(), [](auto label) { return label >= classes; });
  if (wrong != labels.values.end())
    throw std::runtime_error(labels_path.string() + ": label " + std::to_string(*wrong) + " at " +
                             std::to_string(wrong - labels.values.begin()) + ", but there are classes 0 to 9");
  return {std::move(images.values), std::move(labels.values)};
}

}  // namespace

FashionMnist read_fashion_mnist(const std::filesystem::path& folder) {
  for (const char* part : {"train", "t10k"})  // all four are there, before the first is read
    for (const char* kind : {"-images-idx3-ubyte", "-labels-idx1-ubyte"}) find_file(folder, std::string(part) + kind);
  return {read_images(folder, "train"), read_images(folder, "t10k")};
}

template <class T>
void gather(const Images& images, std::span<const std::uint32_t> samples, Batch<T>& batch) {
  batch.inputs.resize(samples.size() * image_bytes);
  batch.labels.resize(samples.size());
  batch.samples.assign(samples.begin(), samples.end());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    batch.labels[i] = images.labels.at(samples[i]);
    const std::uint8_t* const pixels = images.pixels.data() + samples[i] * image_bytes;
    std::transform(pixels, pixels + image_bytes, batch.inputs.data() + i * image_bytes,
                   [](std::uint8_t pixel) { return static_cast<T>(pixel) / T(127.5) - T(1); });
  }
}

template void gather(const Images&, std::span<const std::uint32_t>, Batch<float>&);
template void gather(const Images&, std::span<const std::uint32_t>, Batch<double>&);

}  // namespace data
