// The file: "multinode store", the attempt, and the endpoint with the token, each on a line.
// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/store/rendezvous_file.hpp>
#include <multinode/store/secret.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <optional>
#include <system_error>
#include <thread>

namespace multinode {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view first_line = "multinode store\n";
constexpr std::size_t longest_file = 8 << 10;

UsageError unusable(const fs::path& file, const std::string& why) {
  return UsageError("the rendezvous file " + file.string() + " cannot be used: " + why);
}
UsageError unusable(const fs::path& file, int error) {
  return unusable(file, std::generic_category().message(error) +
                            "; every rank must be able to read it, and rank 0 must be able to write to its folder");
}

// The contents of the file after its first line; nullopt if it does not exist. Throws for any other file.
std::optional<std::string> content_of(const fs::path& file) {
  // NFS caches for a while that a file does not exist, unless its folder is opened.
  const Descriptor folder(
      ::open(file.has_parent_path() ? file.parent_path().c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const Descriptor in(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!in && errno == ENOENT && folder) return {};
  if (!in && errno == ELOOP) throw unusable(file, "it is a link; remove it or choose another path");
  if (!in) throw unusable(file, errno);
  // Else another user could lead the ranks to a store of his.
  if (const auto why = why_not_private(in.get()); !why.empty()) throw unusable(file, why);
  std::string text(longest_file, '\0');
  const ssize_t got = ::read(in.get(), text.data(), text.size());
  if (got < 0) throw unusable(file, errno);
  text.resize(static_cast<std::size_t>(got));
  if (!text.starts_with(first_line) || text.back() != '\n' || std::ranges::count(text, '\n') != 3)
    throw unusable(file, "it is not a rendezvous file; remove it or choose another path");
  return text.substr(first_line.size(), text.size() - first_line.size() - 1);
}

}  // namespace

void write_place(const fs::path& file, const std::string& attempt, const StorePlace& place) {
  content_of(file);
  std::string temporary = file.string() + ".XXXXXX";
  const Descriptor out(::mkstemp(temporary.data()));
  if (!out) throw unusable(file, errno);
  const std::string text = std::string(first_line) + attempt + "\n" + with_token(place) + "\n";
  const ssize_t written = ::write(out.get(), text.data(), text.size());
  if (written < 0 || ::fsync(out.get()) < 0 || ::rename(temporary.c_str(), file.c_str()) < 0) {
    const int error = errno;
    ::unlink(temporary.c_str());
    throw unusable(file, error);
  }
}

StorePlace read_place(const fs::path& file, const std::string& attempt, std::chrono::milliseconds timeout) {
  Deadline deadline(timeout);
  for (std::chrono::milliseconds pause(1);; pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
    const auto text = content_of(file);
    if (text && text->starts_with(attempt + "\n"))
      return parse_store_place(text->substr(attempt.size() + 1), "the rendezvous file " + file.string());
    if (deadline.passed())
      throw StoreTimeout("rank 0 has not written the rendezvous file " + file.string() + " within " + to_text(timeout) +
                         (text ? "; the file there is from another run" : ""));
    std::this_thread::sleep_for(pause);
  }
}

}  // namespace multinode
