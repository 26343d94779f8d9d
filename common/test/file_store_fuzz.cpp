// Arbitrary bytes as a FileStore's file: it is refused, or it works; what is written to it then can be read.
#include <multinode/check.hpp>
#include <multinode/file_store.hpp>
#include <testing/temporary_folder.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <boost/crc.hpp>

#include <cstdint>
#include <cstdlib>
#include <filesystem>

using namespace multinode;
using namespace std::chrono_literals;

namespace {

void put(std::string& to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to += static_cast<char>(value >> (8 * i));
}

// A fuzzer does not guess checksums: the first byte chooses between bytes as they are, and records made of them.
std::string file_of(const std::uint8_t* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 3 == 0) return bytes;
  std::string file("mnfile\x01\n", 8);
  if (data[0] % 3 == 1) return file + bytes;
  for (std::size_t at = 0; at < bytes.size();) {
    const auto length = std::min<std::size_t>(static_cast<std::uint8_t>(bytes[at]), bytes.size() - at - 1);
    const auto body = bytes.substr(at + 1, length);
    boost::crc_32_type crc;
    crc.process_bytes(body.data(), body.size());
    put(file, static_cast<std::uint32_t>(length));
    put(file, crc.checksum());
    file += body;
    at += 1 + length;
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const multinode::testing::TemporaryFolder folder(
      std::filesystem::exists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path());
  static const std::string path = folder / "store";
  if (size == 0) return 0;
  const auto file = file_of(data, size);
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  if (fd < 0 || ::write(fd, file.data(), file.size()) != static_cast<ssize_t>(file.size())) std::abort();
  ::close(fd);
  try {
    FileStore store(path);
    try {
      store.get("", 0ms);
    } catch (const StoreTimeout&) {
    }
    store.set("key", "value");
    try {
      store.add("", 1);
    } catch (const StoreRefused&) {
    }
    FileStore other(path);
    if (other.get("key", 0ms) != "value" || store.get("key", 0ms) != "value") std::abort();
  } catch (const UsageError&) {
  }
  return 0;
}
