#include "data/idx.hpp"
#include "data/fashion_mnist.hpp"
#include "idx_files.hpp"

#include <multinode/base/check.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

namespace idx_test {

using Bytes = std::vector<std::uint8_t>;
using multinode::testing::error_text;

struct File {
  explicit File(const Bytes& bytes) : path(folder / "f") { write_file(path, bytes); }
  const TemporaryFolder folder;
  const std::filesystem::path path;
};
constexpr std::size_t most = std::size_t{1} << 40;
data::Idx read(const Bytes& bytes) { return data::read_idx(File(bytes).path, most); }

// Without the name of the file.
std::string read_error(const Bytes& bytes) {
  const File file(bytes);
  const std::string error = error_text<std::runtime_error>([&] { data::read_idx(file.path, most); }),
                    name = file.path.string() + ": ";
  return error.starts_with(name) ? error.substr(name.size()) : error;
}

TEST(Idx, ReadsPlainAndCompressed) {
  const Bytes file = idx_bytes({2, 3, 1}, {1, 2, 3, 4, 5, 255});
  for (const Bytes& bytes : {file, gzip_of(file)}) {
    const data::Idx idx = read(bytes);
    EXPECT_EQ(idx.dimensions, (std::vector<std::size_t>{2, 3, 1}));
    EXPECT_EQ(idx.values, (Bytes{1, 2, 3, 4, 5, 255}));
  }
}

TEST(Idx, EveryDamageIsNamed) {
  const Bytes good = idx_bytes({2, 2}, {1, 2, 3, 4});
  const auto with = [&](std::size_t at, std::uint8_t value) {
    Bytes bytes = good;
    bytes[at] = value;
    return bytes;
  };
  EXPECT_EQ(read_error({}), "too short for an IDX file");
  EXPECT_EQ(read_error(with(0, 1)), "not an IDX file (it begins with other bytes)");
  EXPECT_EQ(read_error(with(2, 13)), "IDX elements of type 13; only 8, unsigned byte, is read");
  EXPECT_EQ(read_error(with(3, 0)), "an IDX file without dimensions");
  EXPECT_EQ(read_error({0, 0, 8, 2, 0, 0, 0, 1, 0}), "cut off in its header");
  EXPECT_EQ(read_error(with(11, 1)), "more bytes than its header says");
  EXPECT_EQ(read_error(with(11, 3)), "cut off: 4 of 6 elements");
  Bytes longer = good;
  longer.push_back(0);
  EXPECT_EQ(read_error(longer), "more bytes than its header says");
  EXPECT_EQ(read_error(gzip_of(longer)), "more bytes than its header says");
}

TEST(Idx, AHeaderIsNotTrustedWithMemory) {
  Bytes everything{0, 0, 8, 255};  // 2^32-1 to the power of 255 elements, and 64 GiB
  everything.resize(4 + 4 * 255, 255);
  EXPECT_EQ(read_error(gzip_of(everything)), "its header announces more than 1099511627776 bytes");
  EXPECT_EQ(read_error(idx_bytes({16, 0xffffffff}, {})), "cut off: 0 of 68719476720 elements");
}

TEST(Idx, DamagedGzipDataIsSeen) {
  const Bytes whole = gzip_of(idx_bytes({100}, Bytes(100, 7)));
  for (std::size_t size = 2; size < whole.size(); ++size)
    EXPECT_EQ(read_error(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))),
              "the gzip data is cut off; get the file again")
        << size;
  Bytes checksum = whole;
  checksum[whole.size() - 8] ^= 1;
  EXPECT_EQ(read_error(checksum), "damaged gzip data: incorrect data check; get the file again");
}

TEST(FashionMnist, ReadsAFolderOfEitherKind) {
  for (const bool compressed : {true, false}) {
    const TemporaryFolder folder;
    write_data_set(folder.path(), 21, 10, compressed);
    const data::FashionMnist images = data::read_fashion_mnist(folder.path());
    EXPECT_EQ(images.train.size(), 21u);
    EXPECT_EQ(images.train.pixels.size(), 21u * 784);
    EXPECT_EQ(images.test.size(), 10u);
    data::Batch<double> batch;
    data::gather(images.train, std::vector<std::uint32_t>{20, 3}, batch);
    EXPECT_EQ(batch.size(), 2u);
    EXPECT_EQ(batch.labels[0], images.train.labels[20]);
    for (std::size_t p = 0; p < 784; ++p)
      EXPECT_EQ(batch.inputs[784 + p], images.train.pixels[3 * 784 + p] / 127.5 - 1);
  }
}

TEST(FashionMnist, WhatIsMissingIsNamedWithTheCure) {
  const TemporaryFolder folder;
  const std::string cure =
      "install the Debian package dataset-fashion-mnist, or name the folder that has the files with --data DIR";
  EXPECT_EQ(error_text<multinode::UsageError>([&] { data::read_fashion_mnist(folder / "nowhere"); }),
            "no folder " + folder.path().string() + "/nowhere with Fashion-MNIST: " + cure);
  write_data_set(folder.path(), 21, 10, true);
  std::filesystem::remove(folder / "t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(error_text<std::runtime_error>([&] { data::read_fashion_mnist(folder.path()); }),
            "no t10k-labels-idx1-ubyte.gz in " + folder.path().string() + ": " + cure);
  std::filesystem::create_directory(folder / "t10k-labels-idx1-ubyte");
  EXPECT_EQ(error_text<std::runtime_error>([&] { data::read_fashion_mnist(folder.path()); }),
            "cannot read " + folder.path().string() + "/t10k-labels-idx1-ubyte: it is not a regular file");
}

TEST(FashionMnist, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  const auto error_with = [&](const std::string& name, const Bytes& file) {
    write_data_set(folder.path(), 21, 10, false);
    write_file(folder / name, file);
    std::string error = error_text<std::runtime_error>([&] { data::read_fashion_mnist(folder.path()); });
    const std::string path = (folder / name).string() + ": ";
    return error.starts_with(path) ? error.substr(path.size()) : error;
  };
  const std::string labels = "train-labels-idx1-ubyte", pictures = "train-images-idx3-ubyte";
  EXPECT_EQ(error_with(labels, idx_bytes({20}, Bytes(20))), "20 labels for 21 images");
  Bytes ten(21, 9);
  ten[17] = 10;
  EXPECT_EQ(error_with(labels, idx_bytes({21}, ten)), "label 10 at 17, but there are classes 0 to 9");
  EXPECT_EQ(error_with(labels, idx_bytes({21, 1}, Bytes(21))), "not a list of labels");
  EXPECT_EQ(error_with(pictures, idx_bytes({21, 14, 56}, Bytes(21 * 784))), "not images of 28 x 28");
  EXPECT_EQ(error_with(pictures, gzip_of(idx_bytes({32, 1 << 14, 1 << 14}, Bytes(1)))),
            "its header announces more than 196000000 bytes");
  EXPECT_EQ(error_with(pictures, idx_bytes({21 * 784}, Bytes(21 * 784))), "not images of 28 x 28");
}

}  // namespace idx_test
