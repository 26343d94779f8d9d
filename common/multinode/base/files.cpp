// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <limits>
#include <random>
#include <system_error>

namespace multinode {
namespace {

constexpr mode_t mode = 0664;  // not for all users to write, also where the umask is 0
constexpr int new_file = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;

[[noreturn]] void throw_cannot_write(const std::filesystem::path& file, int error = errno) {
  throw std::system_error(error, std::generic_category(), "cannot write to " + file.string());
}

// Such as /dev/stdout, /dev/fd/63 of a shell's >(...), or the path of a file in memory.
bool is_device(const std::filesystem::path& file) {
  const std::string folder = file.parent_path();
  return folder == "/dev" || folder == "/dev/fd" || (folder.starts_with("/proc/") && folder.ends_with("/fd"));
}

bool all_can_write(const std::filesystem::path& folder) {
  struct stat status {};
  return ::stat(folder.c_str(), &status) == 0 && (status.st_mode & S_IWOTH) != 0;
}

}  // namespace

void write_all(int fd, std::string_view text, const std::filesystem::path& file) {
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno != EINTR) throw_cannot_write(file);
    text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(written, 0)));
  }
}

void ForeignFile::fail(const std::string& why) const {
  const std::string text = "cannot read " + file_.string() + ": ";
  if (why.empty()) throw UsageError(text + std::strerror(errno) + limit_of_files(errno));
  throw UnfitFile(text + why);
}

ForeignFile::ForeignFile(const std::filesystem::path& file, std::uint64_t most, Links links)
    : file_(file), most_(most) {
  struct stat found {};
  const int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | (links == Links::refused ? O_NOFOLLOW : 0);
  const bool link = ::lstat(file.c_str(), &found) == 0 && S_ISLNK(found.st_mode);
  if (link && links == Links::refused) fail("it is a link, and links are not followed here");
  if (link && ::stat(file.c_str(), &found) != 0 && (errno == ENOENT || errno == ELOOP)) fail("it is a link to nothing");
  for (const bool is_open : {false, true}) {  // a device is not even opened: some notice that
    if (is_open) opened_ = Descriptor(::open(file.c_str(), flags));
    if (is_open && (!opened_ || ::fstat(opened_.get(), &found) != 0)) fail("");
    if (found.st_mode != 0 && !S_ISREG(found.st_mode) && !S_ISLNK(found.st_mode)) fail("it is not a regular file");
  }
  size_ = static_cast<std::uint64_t>(found.st_size);
  if (size_ > most) fail(std::to_string(size_) + " bytes, and at most " + std::to_string(most) + " are read");
}

std::size_t ForeignFile::read(void* to, std::size_t bytes) {
  for (std::size_t got = 0;;) {
    const ssize_t more = ::read(opened_.get(), static_cast<char*>(to) + got, bytes - got);
    if (more < 0 && errno != EINTR) fail("");
    if (more == 0) return got;
    got += static_cast<std::size_t>(std::max<ssize_t>(more, 0));
  }
}

std::string ForeignFile::first(std::uint64_t most) {
  std::string text;
  std::array<char, 1 << 14> piece;
  for (std::size_t got = piece.size(); got == piece.size() && text.size() < most; text.append(piece.data(), got))
    got = read(piece.data(), std::min<std::uint64_t>(piece.size(), most - text.size()));
  return text;
}

std::string ForeignFile::text() {
  std::string text = first(most_ + 1);
  if (text.size() > most_) fail("it grew to more than " + std::to_string(most_) + " bytes while it was read");
  return text;
}

std::optional<std::string> read_text(const std::filesystem::path& file) try {
  std::string text = ForeignFile(file, std::numeric_limits<std::uint64_t>::max(), Links::followed).first(1 << 20);
  const char* const space = " \t\r\n";
  text.erase(text.find_last_not_of(space) + 1);
  text.erase(0, text.find_first_not_of(space));
  if (text.empty()) return std::nullopt;
  return text;
} catch (const UsageError&) {  // also of some files of /sys, which can be opened but not read
  return std::nullopt;
}

bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::exists(path, error);
}

Descriptor create_new(const std::filesystem::path& file) {
  // Twice, as somebody may put it there again meanwhile.
  for (int attempt = 0; attempt < 2; ++attempt) {
    if (::unlink(file.c_str()) != 0 && errno != ENOENT) throw_cannot_write(file);
    if (Descriptor made(::open(file.c_str(), new_file, mode)); made) return made;
    if (errno != EEXIST) break;
  }
  throw_cannot_write(file);
}

Descriptor open_in_place(const std::filesystem::path& file, bool append) {
  const int flags = O_WRONLY | O_CLOEXEC | (append ? O_APPEND : 0);
  if (is_device(file)) {
    Descriptor device(::open(file.c_str(), flags | (append ? 0 : O_TRUNC)));
    if (!device) throw_cannot_write(file);
    return device;
  }
  const bool anybodys = all_can_write(file.has_parent_path() ? file.parent_path() : ".");
  Descriptor opened(::open(file.c_str(), flags | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, mode));
  struct stat status {};
  if (!opened ? errno == ELOOP || errno == ENXIO
              : ::fstat(opened.get(), &status) == 0 && (!S_ISREG(status.st_mode) || status.st_nlink != 1))
    throw std::system_error(
        EEXIST, std::generic_category(),
        "cannot write to " + file.string() + ", where a link or a pipe lies: remove it, or name another file");
  if (opened && anybodys && status.st_uid != ::geteuid())
    throw std::system_error(EEXIST, std::generic_category(),
                            "cannot write to " + file.string() + ", another user's file: name another one");
  // What had two names a moment ago may be a file of ours elsewhere.
  if (opened && anybodys && !append) return create_new(file);
  if (!opened || (!append && ::ftruncate(opened.get(), 0) < 0)) throw_cannot_write(file);
  return opened;
}

void write_whole(const std::filesystem::path& file, std::string_view text) {
  if (is_device(file)) return write_all(open_in_place(file, false).get(), text, file);
  const auto folder = file.parent_path();
  const Descriptor at(::open(folder.empty() ? "." : folder.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!at) throw_cannot_write(file);
  std::random_device random;
  const std::string name = file.filename(),
                    aside = "." + name + ".new-" + std::to_string(random()) + std::to_string(random());
  {
    const Descriptor made(::openat(at.get(), aside.c_str(), new_file, mode));
    if (!made) throw_cannot_write(file);
    try {
      write_all(made.get(), text, file);
    } catch (...) {
      ::unlinkat(at.get(), aside.c_str(), 0);
      throw;
    }
  }
  if (::renameat(at.get(), aside.c_str(), at.get(), name.c_str()) == 0) return;
  const int error = errno;
  ::unlinkat(at.get(), aside.c_str(), 0);
  throw_cannot_write(file, error);
}

void make_folders(const std::filesystem::path& folder) {
  std::filesystem::path made;
  for (const auto& part : folder)
    if (!is_there(made /= part) && ::mkdir(made.c_str(), folder_mode) != 0 && errno != EEXIST) throw_cannot_write(made);
}

std::string why_not_own(const std::filesystem::path& folder) {
  const auto path = std::filesystem::absolute(folder / ".").lexically_normal().parent_path();
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && (status.st_mode & S_IWOTH) != 0 && (status.st_mode & S_ISVTX) == 0)
    return "every user can write to it, and exchange what is in it: name a folder in it";
  if (::lstat(path.c_str(), &status) == 0 && status.st_uid != ::geteuid() && status.st_uid != 0 &&
      all_can_write(path.parent_path()))
    return "it is another user's, in a folder in which every user can write: name another one";
  return "";
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error))
    names.push_back(entry->path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace multinode
