#include "idx.hpp"

#include <multinode/check.hpp>

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <limits>
#include <memory>
#include <stdexcept>

namespace data {
namespace {

// The bytes of a file in order, uncompressed.
class Source {
 public:
  virtual ~Source() = default;
  virtual std::size_t read(std::span<std::uint8_t> into) = 0;  // fewer than asked for only at the end
  virtual std::size_t at_most() const = 0;                     // bytes that can come in all
  virtual void expect_end() = 0;                               // throws if anything follows
};

class PlainSource : public Source {
 public:
  PlainSource(std::span<const std::uint8_t> file, const std::string& name) : file_(file), name_(name) {}
  std::size_t read(std::span<std::uint8_t> into) override {
    const std::size_t n = std::min(into.size(), file_.size() - at_);
    std::copy_n(file_.begin() + static_cast<std::ptrdiff_t>(at_), n, into.begin());
    at_ += n;
    return n;
  }
  std::size_t at_most() const override { return file_.size(); }
  void expect_end() override {
    if (at_ != file_.size())
      throw std::runtime_error(name_ + ": " + std::to_string(file_.size() - at_) + " bytes behind the last element");
  }

 private:
  std::span<const std::uint8_t> file_;
  const std::string& name_;
  std::size_t at_ = 0;
};

class GzipSource : public Source {
 public:
  GzipSource(std::span<const std::uint8_t> file, const std::string& name) : file_(file), name_(name) {
    if (file.size() > std::numeric_limits<uInt>::max()) throw std::runtime_error(name + ": larger than 4 GiB");
    stream_.next_in = const_cast<Bytef*>(file.data());  // zlib does not write there
    stream_.avail_in = static_cast<uInt>(file.size());
    if (inflateInit2(&stream_, 16 + MAX_WBITS) != Z_OK) throw std::runtime_error(name + ": zlib does not start");
  }
  ~GzipSource() override { inflateEnd(&stream_); }
  GzipSource(const GzipSource&) = delete;
  GzipSource& operator=(const GzipSource&) = delete;

  std::size_t read(std::span<std::uint8_t> into) override {
    std::size_t done = 0;
    while (done < into.size() && !ended_) {
      const std::size_t step = std::min<std::size_t>(into.size() - done, 1 << 30);
      stream_.next_out = into.data() + done;
      stream_.avail_out = static_cast<uInt>(step);
      const int code = inflate(&stream_, Z_NO_FLUSH);
      done += step - stream_.avail_out;
      ended_ = code == Z_STREAM_END;
      if (code == Z_BUF_ERROR || (code == Z_OK && stream_.avail_in == 0 && stream_.avail_out > 0))
        throw std::runtime_error(name_ + ": the gzip data is cut off; get the file again");
      if (code != Z_OK && !ended_)
        throw std::runtime_error(name_ + ": damaged gzip data (" + (stream_.msg ? stream_.msg : "zlib error") +
                                 "); get the file again");
    }
    return done;
  }
  std::size_t at_most() const override { return file_.size() * 1032; }  // deflate compresses no better than this
  void expect_end() override {
    std::uint8_t more = 0;  // also reads the trailer, and so checks the checksum
    if (read({&more, 1}) != 0) throw std::runtime_error(name_ + ": more bytes than its header says");
    if (stream_.avail_in != 0)
      throw std::runtime_error(name_ + ": " + std::to_string(stream_.avail_in) + " bytes behind the gzip data");
  }

 private:
  std::span<const std::uint8_t> file_;
  const std::string& name_;
  z_stream stream_{};
  bool ended_ = false;
};

}  // namespace

Idx parse_idx(std::span<const std::uint8_t> file, const std::string& name) {
  const bool gzip = file.size() >= 2 && file[0] == 0x1f && file[1] == 0x8b;
  const std::unique_ptr<Source> source =
      gzip ? std::unique_ptr<Source>(new GzipSource(file, name)) : std::make_unique<PlainSource>(file, name);

  std::uint8_t head[4] = {};
  if (source->read(head) != 4) throw std::runtime_error(name + ": too short for an IDX file");
  if (head[0] != 0 || head[1] != 0) throw std::runtime_error(name + ": not an IDX file (it begins with other bytes)");
  if (head[2] != 8)
    throw std::runtime_error(name + ": IDX elements of type " + std::to_string(head[2]) +
                             "; only 8, unsigned byte, is read");
  if (head[3] == 0) throw std::runtime_error(name + ": an IDX file without dimensions");

  Idx idx;
  std::size_t count = 1;
  for (int d = 0; d < head[3]; ++d) {
    std::uint8_t word[4];
    if (source->read(word) != 4) throw std::runtime_error(name + ": cut off in its header");
    std::size_t dimension = 0;
    for (const std::uint8_t byte : word) dimension = dimension << 8 | byte;
    idx.dimensions.push_back(dimension);
    // Never trust a header with memory: what it announces must be able to come out of this file.
    if (dimension != 0 && count > source->at_most() / dimension)
      throw std::runtime_error(name + ": its header announces more elements than the file can hold");
    count *= dimension;
  }
  idx.values.resize(count);
  const std::size_t got = source->read(idx.values);
  if (got != count)
    throw std::runtime_error(name + ": cut off: " + std::to_string(got) + " of " + std::to_string(count) + " elements");
  source->expect_end();
  return idx;
}

Idx read_idx(const std::filesystem::path& path) {
  std::error_code error;
  const auto size = std::filesystem::file_size(path, error);
  if (error) throw multinode::UsageError("cannot read " + path.string() + ": " + error.message());
  std::ifstream file(path, std::ios::binary);
  std::vector<std::uint8_t> bytes(size);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size)))
    throw multinode::UsageError("cannot read " + path.string() + ": " + std::strerror(errno));
  return parse_idx(bytes, path.string());
}

}  // namespace data
