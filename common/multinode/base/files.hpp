// files.hpp: reads small files such as those in /proc, /sys and /etc. A missing or unreadable file is not an error: its
// value is unknown. Reads files that another user may have made. Writes files into folders in which somebody else may
// have left links and pipes.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/text.hpp>

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace multinode {

// A folder, pipe, socket or device, a link that is refused or leads to nothing, or a file that is too large.
struct UnfitFile : UsageError {
  using UsageError::UsageError;
};

enum class Links { refused, followed };  // followed: the user chose the name, or its folder

// A regular file that another user may have made, and may exchange or change while it is read. At most `most` bytes of
// it are read. All members throw UnfitFile and, if it cannot be read, UsageError: one line that names the file.
class ForeignFile {
 public:
  ForeignFile(const std::filesystem::path& file, std::uint64_t most, Links links);
  std::uint64_t size() const { return size_; }    // when it was opened
  std::size_t read(void* to, std::size_t bytes);  // fewer only at the end of the file
  std::string first(std::uint64_t most);          // at most so many bytes
  std::string text();                             // all
  int release() { return opened_.release(); }     // the descriptor

 private:
  [[noreturn]] void fail(const std::string& why) const;
  std::filesystem::path file_;
  std::uint64_t most_, size_ = 0;
  Descriptor opened_;
};

// Up to 1 MiB of a file's text, without leading and trailing white space. nullopt if it is empty, not a regular file,
// or unreadable.
std::optional<std::string> read_text(const std::filesystem::path& file);

bool is_there(const std::filesystem::path& path);

// Removes what has this name, and opens a new file for writing. It follows no link and waits for no pipe. Throws
// std::system_error.
Descriptor create_new(const std::filesystem::path& file);

// Opens a file for writing, at its end or emptied, and makes it if it does not exist. Where a link, a pipe, a file with
// several names or, in a folder in which every user can write, another user's file lies it throws std::system_error, as
// on any other error. Files in /dev are opened as they are.
Descriptor open_in_place(const std::filesystem::path& file, bool append);

// Writes all of it, or throws std::system_error, which names the file.
void write_all(int fd, std::string_view text, const std::filesystem::path& file);

// Writes a file whole or not at all: a new file of a random name takes the place of what is there, also of a link or
// pipe. Files in /dev, such as /dev/stdout, are written as they are. Throws std::system_error.
void write_whole(const std::filesystem::path& file, std::string_view text);

// Of a folder that is made: not for all users to write, also where the umask is 0.
inline constexpr mode_t folder_mode = 0775;

// Makes what is missing of this folder. Throws std::system_error.
void make_folders(const std::filesystem::path& folder);

// Why another user can exchange what is written to this folder, or has made it: it is in /tmp, and not this user's, or
// every user can write to it, and it has no sticky bit. "" if not.
std::string why_not_own(const std::filesystem::path& folder);

// The sorted names in a folder; empty if it cannot be read.
std::vector<std::string> names_in(const std::filesystem::path& folder);

// nullopt if the text is not a number or Number cannot hold it.
template <class Number>
std::optional<Number> read_number(const std::filesystem::path& file) {
  const auto text = read_text(file);
  return text ? number_of<Number>(*text) : std::nullopt;
}

}  // namespace multinode
