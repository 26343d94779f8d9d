// The PTX of programs.
#include <cstring>
#include <iterator>
#include <map>

#include "program.hpp"

#ifdef EMULATED_GPU_ZSTD
#include <zstd.h>
#endif
#ifdef EMULATED_GPU_LZ4
#include <lz4.h>
#endif

namespace emulated_gpu::ptx {
namespace {

// The layouts were found by comparing nvcc's output with cuobjdump's; the wrapper is __fatBinC_Wrapper_t of
// fatbinary_section.h.
struct Wrapper {
  std::uint32_t magic, version;
  const char* data;
  const void* unused;
};
struct Header {
  std::uint32_t magic;
  std::uint16_t version, header_size;
  std::uint64_t size;
};
struct Entry {
  std::uint16_t kind, version;
  std::uint32_t header_size;
  std::uint64_t payload_size;
  std::uint32_t compressed_size, options_offset;
  std::uint16_t minor, major;
  std::uint32_t architecture, name_offset, name_size;
  std::uint64_t flags, reserved, size;
};
static_assert(sizeof(Entry) == 64);
constexpr std::uint32_t wrapper_magic = 0x466243b1, header_magic = 0xBA55ED50;
constexpr std::uint16_t kind_of_ptx = 1;
constexpr std::uint64_t compressed_by_lz4 = 0x2000, compressed_by_zstd = 0x8000;

// The text of an entry, or the reason why there is none.
std::string text_of(const Entry& entry, const char* payload, std::string& why) {
  std::string text(entry.size, '\0');
  bool good = true;
  [[maybe_unused]] const auto without = [&](const std::string& library) {
    why = "its PTX is compressed, and emulated-gpu was built without " + library + " (" + library +
          "-dev): compile it with nvcc --compress-mode=none";
    return "";
  };
  if (entry.flags & compressed_by_zstd) {
#ifdef EMULATED_GPU_ZSTD
    good = ZSTD_decompress(text.data(), text.size(), payload, entry.compressed_size) == text.size();
#else
    return without("libzstd");
#endif
  } else if (entry.flags & compressed_by_lz4) {
#ifdef EMULATED_GPU_LZ4
    good = LZ4_decompress_safe(payload, text.data(), static_cast<int>(entry.compressed_size),
                               static_cast<int>(text.size())) == static_cast<int>(text.size());
#else
    return without("liblz4");
#endif
  } else {
    text.assign(payload, entry.payload_size);
  }
  if (!good) {
    why = "its compressed PTX is damaged";
    return "";
  }
  text.resize(text.find_last_not_of('\0') + 1);
  return text;
}

using Texts = std::map<unsigned, std::string>;  // by architecture

// Reads the fat binary at `at`; returns false if it is none.
bool read(const char* at, Texts& texts, Images& images) {
  Header header;
  std::memcpy(&header, at, sizeof header);
  if (header.magic != header_magic) return false;
  at += header.header_size;
  for (const char* const end = at + header.size; at + sizeof(Entry) <= end;) {
    Entry entry;
    std::memcpy(&entry, at, sizeof entry);
    const bool ptx = entry.kind == kind_of_ptx;
    const std::string found = (ptx ? "PTX for compute_" : "machine code for sm_") + std::to_string(entry.architecture);
    if (images.contents.find(found) == std::string::npos)
      images.contents += (images.contents.empty() ? "" : ", ") + found;
    if (ptx)
      if (std::string text = text_of(entry, at + entry.header_size, images.why); !text.empty())
        texts[entry.architecture] = std::move(text);
    at += entry.header_size + entry.payload_size;
  }
  return true;
}

}  // namespace

Images find_images(const void* wrapper, unsigned wanted) {
  Images images;
  Wrapper found;
  std::memcpy(&found, wrapper, sizeof found);
  Texts texts;
  if (found.magic != wrapper_magic || !read(found.data, texts, images)) {
    images.why = "its fat binary has an unknown format";
    return images;
  }
  const auto behind = texts.upper_bound(wanted);
  if (behind == texts.begin()) return images;
  const auto best = std::prev(behind);
  images.text = std::move(best->second);
  return images;
}

}  // namespace emulated_gpu::ptx
