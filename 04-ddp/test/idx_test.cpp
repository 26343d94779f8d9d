#include "data/idx.hpp"
#include "data/fashion_mnist.hpp"
#include "idx_files.hpp"

#include <multinode/check.hpp>

#include <gtest/gtest.h>

#include <functional>

namespace idx_test {

using Bytes = std::vector<std::uint8_t>;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "no error";
}

std::string parse_error(const Bytes& file) {
  return error_of([&] { data::parse_idx(file, "f"); });
}

TEST(Idx, ReadsPlainAndCompressed) {
  const Bytes file = idx_bytes({2, 3, 1}, {1, 2, 3, 4, 5, 255});
  for (const Bytes& bytes : {file, gzip_of(file)}) {
    const data::Idx idx = data::parse_idx(bytes, "f");
    EXPECT_EQ(idx.dimensions, (std::vector<std::size_t>{2, 3, 1}));
    EXPECT_EQ(idx.values, (Bytes{1, 2, 3, 4, 5, 255}));
  }
}

TEST(Idx, EmptyArraysAreArrays) {
  EXPECT_TRUE(data::parse_idx(idx_bytes({0}, {}), "f").values.empty());
  EXPECT_TRUE(data::parse_idx(gzip_of(idx_bytes({5, 0}, {})), "f").values.empty());
}

TEST(Idx, EveryDamageIsNamed) {
  const Bytes good = idx_bytes({2, 2}, {1, 2, 3, 4});
  const auto with = [&](std::size_t at, std::uint8_t value) {
    Bytes bytes = good;
    bytes[at] = value;
    return bytes;
  };
  EXPECT_EQ(parse_error({}), "f: too short for an IDX file");
  EXPECT_EQ(parse_error(with(0, 1)), "f: not an IDX file (it begins with other bytes)");
  EXPECT_EQ(parse_error(with(2, 13)), "f: IDX elements of type 13; only 8, unsigned byte, is read");
  EXPECT_EQ(parse_error(with(3, 0)), "f: an IDX file without dimensions");
  EXPECT_EQ(parse_error({0, 0, 8, 2, 0, 0, 0, 1, 0}), "f: cut off in its header");
  EXPECT_EQ(parse_error(with(11, 1)), "f: 2 bytes behind the last element");
  EXPECT_EQ(parse_error(with(11, 3)), "f: cut off: 4 of 6 elements");
  EXPECT_EQ(parse_error(with(4, 255)), "f: its header announces more elements than the file can hold");
  Bytes longer = good;
  longer.push_back(0);
  EXPECT_EQ(parse_error(longer), "f: 1 bytes behind the last element");
  EXPECT_EQ(parse_error(gzip_of(longer)), "f: more bytes than its header says");
}

TEST(Idx, AHeaderIsNotTrustedWithMemory) {
  // 2^32-1 to the power of 255 elements, and just 16 GiB
  Bytes everything{0, 0, 8, 255};
  everything.resize(4 + 4 * 255, 255);
  EXPECT_EQ(parse_error(everything), "f: its header announces more elements than the file can hold");
  EXPECT_EQ(parse_error(gzip_of(everything)), "f: its header announces more elements than the file can hold");
  EXPECT_EQ(parse_error(idx_bytes({4, 0xffffffff}, {})),
            "f: its header announces more elements than the file can hold");
}

TEST(Idx, EveryTruncationOfGzipDataIsSeen) {
  const Bytes whole = gzip_of(idx_bytes({100}, Bytes(100, 7)));
  for (std::size_t size = 2; size < whole.size(); ++size)
    EXPECT_EQ(parse_error(Bytes(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(size))),
              "f: the gzip data is cut off; get the file again")
        << size;
}

TEST(Idx, DamagedGzipDataIsSeen) {
  const Bytes whole = gzip_of(idx_bytes({100}, Bytes(100, 7)));
  Bytes checksum = whole;
  checksum[whole.size() - 8] ^= 1;
  EXPECT_EQ(parse_error(checksum), "f: damaged gzip data (incorrect data check); get the file again");
  Bytes trailing = whole;
  trailing.insert(trailing.end(), 3, 0);
  EXPECT_EQ(parse_error(trailing), "f: 3 bytes behind the gzip data");
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
  EXPECT_THROW(data::read_fashion_mnist(folder / "nowhere"), multinode::UsageError);
  const std::string cure =
      "install the Debian package dataset-fashion-mnist, or name the folder that has the files with --data DIR";
  EXPECT_EQ(error_of([&] { data::read_fashion_mnist(folder / "nowhere"); }),
            "no folder " + folder.path().string() + "/nowhere with Fashion-MNIST: " + cure);
  write_data_set(folder.path(), 21, 10, true);
  std::filesystem::remove(folder / "t10k-labels-idx1-ubyte.gz");
  EXPECT_EQ(error_of([&] { data::read_fashion_mnist(folder.path()); }),
            "no t10k-labels-idx1-ubyte.gz in " + folder.path().string() + ": " + cure);
  std::filesystem::create_directory(folder / "t10k-labels-idx1-ubyte");
  EXPECT_EQ(error_of([&] { data::read_fashion_mnist(folder.path()); }),
            "cannot read " + folder.path().string() + "/t10k-labels-idx1-ubyte: Is a directory");
}

TEST(FashionMnist, WhatDoesNotFitIsNamed) {
  const TemporaryFolder folder;
  const auto error_with = [&](const std::string& name, const Bytes& file) {
    write_data_set(folder.path(), 21, 10, false);
    write_file(folder / name, file);
    std::string error = error_of([&] { data::read_fashion_mnist(folder.path()); });
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
  EXPECT_EQ(error_with(pictures, idx_bytes({21 * 784}, Bytes(21 * 784))), "not images of 28 x 28");
  write_file(folder / labels, idx_bytes({0}, {}));
  EXPECT_EQ(error_of([&] {
              write_file(folder / pictures, idx_bytes({0, 28, 28}, {}));
              data::read_fashion_mnist(folder.path());
            }),
            (folder / pictures).string() + ": no images in it");
}

}  // namespace idx_test
