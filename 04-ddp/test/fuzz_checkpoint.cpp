// libFuzzer: whatever a file holds, parse_checkpoint returns or throws std::runtime_error, and then leaves the blocks
// alone. The input is a file; or, after an even byte, edits of a good one (position, position / 256, value). The
// checksum is then made to fit, or nothing would get past them.
#include "ddp/checkpoint.hpp"
#include "idx_files.hpp"

#include <zlib.h>

#include <cstdlib>
#include <cstring>

namespace {

struct Model {
  std::vector<float> weights = std::vector<float>(6, 1);
  std::vector<std::int32_t> counts = std::vector<std::int32_t>(2, 1);
  std::vector<ddp::NamedBlock> blocks() { return {{"w", {3, 2}, std::span(weights)}, {"c", {2}, std::span(counts)}}; }
  bool operator==(const Model&) const = default;
};

std::vector<std::uint8_t> good_file() {
  const TemporaryFolder folder;
  Model model;
  ddp::write_checkpoint(folder / "a", {{"step", 5}}, model.blocks());
  const std::string file = multinode::testing::text_of(folder / "a");
  return {file.begin(), file.end()};
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* bytes, std::size_t size) {
  static const std::vector<std::uint8_t> good = good_file();
  std::vector<std::uint8_t> file(bytes, bytes + size);
  if (size > 0 && bytes[0] % 2 == 0) {
    file = good;
    for (std::size_t i = 1; i + 3 <= size; i += 3)
      if (const std::size_t at = bytes[i] + 256u * bytes[i + 1]; at < file.size()) file[at] = bytes[i + 2];
    const auto sum = static_cast<std::uint32_t>(crc32_z(0, file.data(), file.size() - 4));
    std::memcpy(file.data() + file.size() - 4, &sum, sizeof sum);
  }
  Model model;
  try {
    ddp::parse_checkpoint(file, "input", model.blocks());
  } catch (const std::runtime_error&) {
    if (model != Model()) std::abort();
  }
  return 0;
}
