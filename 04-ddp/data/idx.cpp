#include "idx.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>

#include <zlib.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>

namespace data {

Idx read_idx(const std::filesystem::path& path, std::size_t most) {
  const auto require = [&path](bool right, const std::string& wrong) {
    if (!right) throw std::runtime_error(path.string() + ": " + wrong);
  };
  // Compressed, it is hardly longer. The data set is the user's: so are links in it.
  multinode::ForeignFile opened(path, 2 * most + 4096, multinode::Links::followed);
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzdopen(opened.release(), "rb"),
                                                        gzclose);  // reads plain files too
  if (!file) throw std::bad_alloc();
  const auto read = [&](std::uint8_t* into, std::size_t count) {  // returns fewer than that only at the end
    const int got = gzread(file.get(), into, static_cast<unsigned>(count));
    int code = Z_OK;
    const std::string error = gzerror(file.get(), &code);  // "file: what is wrong", or empty
    if (code == Z_ERRNO) throw multinode::UsageError("cannot read " + path.string() + ": " + std::strerror(errno));
    require(code != Z_BUF_ERROR, "the gzip data is cut off; get the file again");
    require(got >= 0, "damaged gzip data:" + error.substr(error.rfind(':') + 1) + "; get the file again");
    return static_cast<std::size_t>(got);
  };

  std::array<std::uint8_t, 4> head{};
  require(read(head.data(), 4) == 4, "too short for an IDX file");
  require(head[0] == 0 && head[1] == 0, "not an IDX file (it begins with other bytes)");
  require(head[2] == 8, "IDX elements of type " + std::to_string(head[2]) + "; only 8, unsigned byte, is read");
  require(head[3] != 0, "an IDX file without dimensions");
  Idx idx;
  std::size_t count = 1;
  for (int d = 0; d < head[3]; ++d) {
    std::array<std::uint8_t, 4> word{};
    require(read(word.data(), 4) == 4, "cut off in its header");
    std::size_t dimension = 0;
    for (const std::uint8_t byte : word) dimension = dimension << 8 | byte;
    idx.dimensions.push_back(dimension);
    require(dimension == 0 || count <= most / dimension,
            "its header announces more than " + std::to_string(most) + " bytes");
    count *= dimension;
  }
  // Piece by piece: the header is not trusted with memory.
  for (std::size_t got = 1; got > 0 && idx.values.size() < count;) {
    const std::size_t have = idx.values.size(), piece = std::min(count - have, std::size_t{1} << 24);
    idx.values.resize(have + piece);
    got = read(idx.values.data() + have, piece);
    idx.values.resize(have + got);
  }
  require(idx.values.size() == count,
          "cut off: " + std::to_string(idx.values.size()) + " of " + std::to_string(count) + " elements");
  std::uint8_t more = 0;  // this also reads the trailer of gzip, and so checks the checksum
  require(read(&more, 1) == 0, "more bytes than its header says");
  return idx;
}

}  // namespace data
