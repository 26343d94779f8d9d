#include "token.hpp"

#include <multinode/check.hpp>
#include <multinode/descriptor.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace cluster {

namespace {

constexpr std::size_t token_bytes = 32;
constexpr std::string_view digits = "0123456789abcdef";
constexpr const char* header = "authorization";
constexpr std::string_view scheme = "Bearer ";

std::string why() { return std::string(": ") + std::strerror(errno); }

}  // namespace

std::string make_token() {
  std::array<unsigned char, token_bytes> random{};
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size()))
    throw std::system_error(errno, std::generic_category(), "getrandom");
  std::string token;
  for (const unsigned char byte : random) token += fmt::format("{:02x}", byte);
  return token;
}

void write_token(const std::filesystem::path& file, std::string_view token) {
  const std::string unfinished = file.string() + "." + std::to_string(getpid());
  const auto fail = [&] { throw multinode::UsageError("cannot write the token to " + file.string() + why()); };
  multinode::Descriptor fd(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!fd) fail();
  const std::string line = std::string(token) + "\n";
  if (write(fd.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()) ||
      rename(unfinished.c_str(), file.c_str()) != 0) {
    const int error = errno;
    unlink(unfinished.c_str());
    errno = error;
    fail();
  }
}

std::string read_token(const std::filesystem::path& file) {
  const std::string name = "the token file " + file.string();
  multinode::Descriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw multinode::UsageError(name + why() + "; 'cluster start --head' makes it");
  struct stat status {};
  if (fstat(fd.get(), &status) != 0) throw multinode::UsageError(name + why());
  if (!S_ISREG(status.st_mode)) throw multinode::UsageError(name + " is no file");
  if (status.st_uid != geteuid()) throw multinode::UsageError(name + " belongs to another user");
  if ((status.st_mode & 077) != 0) throw multinode::UsageError(name + " is open to other users: chmod 600 it");
  std::array<char, 2 * token_bytes + 2> buffer{};
  const ssize_t count = read(fd.get(), buffer.data(), buffer.size());
  const std::string_view text(buffer.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  if (text.size() != 2 * token_bytes + 1 || text.back() != '\n' || text.find_first_not_of(digits) != 2 * token_bytes)
    throw multinode::UsageError(name + " holds no token: 64 hexadecimal digits in a line");
  return std::string(text.substr(0, 2 * token_bytes));
}

void add_token(grpc::ClientContext& call, const std::string& token) {
  call.AddMetadata(header, std::string(scheme) + token);
}

bool same_token(std::string_view given, std::string_view token) {
  unsigned difference = given.size() == token.size() ? 0 : 1;
  for (std::size_t i = 0; i < token.size(); ++i)
    difference |= static_cast<unsigned char>(token[i]) ^ (i < given.size() ? static_cast<unsigned char>(given[i]) : 0u);
  return difference == 0;
}

bool has_token(const grpc::ServerContextBase& call, std::string_view token) {
  const auto& metadata = call.client_metadata();
  const auto found = metadata.equal_range(header);
  if (std::distance(found.first, found.second) != 1) return false;
  const std::string_view given(found.first->second.data(), found.first->second.size());
  return given.starts_with(scheme) && same_token(given.substr(scheme.size()), token);
}

}  // namespace cluster
