#include "fatbin.hpp"

#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>

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
  if (entry.flags & compressed_by_zstd) {
#ifdef EMULATED_GPU_ZSTD
    good = ZSTD_decompress(text.data(), text.size(), payload, entry.compressed_size) == text.size();
#else
    why =
        "its PTX is compressed with zstd, and emulated-gpu was built without libzstd (libzstd-dev): compile it with "
        "nvcc --compress-mode=none";
    return "";
#endif
  } else if (entry.flags & compressed_by_lz4) {
#ifdef EMULATED_GPU_LZ4
    good = LZ4_decompress_safe(payload, text.data(), static_cast<int>(entry.compressed_size),
                               static_cast<int>(text.size())) == static_cast<int>(text.size());
#else
    why =
        "its PTX is compressed with LZ4, and emulated-gpu was built without liblz4 (liblz4-dev): compile it with "
        "nvcc --compress-mode=none";
    return "";
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

using Texts = std::map<unsigned, std::vector<std::string>>;  // by architecture

// Reads the fat binary at `at`; returns its end, or null if there is none.
const char* read(const char* at, const char* limit, Texts& texts, Images& images) {
  Header header;
  if (limit && at + sizeof header > limit) return nullptr;
  std::memcpy(&header, at, sizeof header);
  if (header.magic != header_magic) return nullptr;
  at += header.header_size;
  const char* const end = at + header.size;
  if (limit && end > limit) return nullptr;
  while (at + sizeof(Entry) <= end) {
    Entry entry;
    std::memcpy(&entry, at, sizeof entry);
    const bool ptx = entry.kind == kind_of_ptx;
    const std::string found = (ptx ? "PTX for compute_" : "machine code for sm_") + std::to_string(entry.architecture);
    if (images.contents.find(found) == std::string::npos)
      images.contents += (images.contents.empty() ? "" : ", ") + found;
    if (ptx)
      if (std::string text = text_of(entry, at + entry.header_size, images.why); !text.empty())
        texts[entry.architecture].push_back(std::move(text));
    at += entry.header_size + entry.payload_size;
  }
  return end;
}

// With -rdc=true the registered fat binary has only machine code. The PTX of each source file is in the section
// __nv_relfatbin of the program's file.
void read_linked(const void* wrapper, Texts& texts, Images& images) {
  Dl_info info;
  if (!dladdr(wrapper, &info) || !info.dli_fname) return;
  std::ifstream own(info.dli_fname, std::ios::binary);
  std::ifstream program("/proc/self/exe", std::ios::binary);  // dli_fname of the program may be relative
  std::ifstream& file = own ? own : program;
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  if (bytes.size() < sizeof(Elf64_Ehdr) || std::memcmp(bytes.data(), ELFMAG, SELFMAG) != 0) return;
  const auto at = [&]<class T>(T, std::uint64_t offset) {
    T value{};
    if (offset + sizeof value <= bytes.size()) std::memcpy(&value, bytes.data() + offset, sizeof value);
    return value;
  };
  const auto header = at(Elf64_Ehdr{}, 0);
  const auto section = [&](unsigned n) { return at(Elf64_Shdr{}, header.e_shoff + n * sizeof(Elf64_Shdr)); };
  const Elf64_Shdr names = section(header.e_shstrndx);
  for (unsigned n = 0; n < header.e_shnum; ++n) {
    const Elf64_Shdr one = section(n);
    const std::uint64_t name = names.sh_offset + one.sh_name;
    if (name >= bytes.size() || std::strcmp(bytes.data() + name, "__nv_relfatbin") != 0) continue;
    const char* place = bytes.data() + one.sh_offset;
    const char* const end = place + one.sh_size;
    while (place && place < end) {
      const char* next = read(place, end, texts, images);
      place = next ? next : place + 8;  // padding
    }
  }
}

}  // namespace

Images find_images(const void* wrapper, unsigned wanted) {
  Images images;
  Wrapper found;
  std::memcpy(&found, wrapper, sizeof found);
  Texts texts;
  if (found.magic != wrapper_magic || !read(found.data, nullptr, texts, images)) {
    images.why = "its fat binary has an unknown format";
    return images;
  }
  if (texts.empty()) read_linked(wrapper, texts, images);
  const auto behind = texts.upper_bound(wanted);
  if (behind == texts.begin()) return images;
  const auto best = std::prev(behind);
  images.architecture = best->first;
  images.texts = std::move(best->second);
  return images;
}

}  // namespace emulated_gpu::ptx
