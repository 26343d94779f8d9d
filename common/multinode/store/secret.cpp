// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/store/hmac.hpp>
#include <multinode/store/secret.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <system_error>
#include <thread>

namespace multinode {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t shortest_secret = 16, longest_secret = 4096;  // characters

UsageError unusable_secret(const fs::path& file, const std::string& why) {
  return UsageError("the secret file " + file.string() + " cannot be used: " + why);
}

std::string without_end_of_line(std::string text) {
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

// nullopt, with errno, if it cannot be opened.
std::optional<std::string> text_of_secret(const fs::path& file) {
  const Descriptor folder(::open(file.parent_path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));  // see read_place()
  const Descriptor in(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!in) return {};
  if (const auto why = why_not_private(in.get()); !why.empty()) throw unusable_secret(file, why);
  std::string text(longest_secret, '\0');
  const ssize_t got = ::read(in.get(), text.data(), text.size());
  if (got < 0) throw unusable_secret(file, std::generic_category().message(errno));
  text.resize(static_cast<std::size_t>(got));
  text = without_end_of_line(std::move(text));
  if (text.size() < shortest_secret)
    throw unusable_secret(file, "it has fewer than " + std::to_string(shortest_secret) + " characters; remove it");
  return text;
}

// Returns whether the file exists now, made by this process or another one; else errno says why not.
bool make_secret(const fs::path& file) {
  ::mkdir(file.parent_path().c_str(), 0700);  // the error, if any, is that of mkstemp
  std::string temporary = file.string() + ".XXXXXX";
  const Descriptor out(::mkstemp(temporary.data()));  // mode 0600, O_EXCL
  if (!out) return false;
  const std::string text = to_hex(random_bytes(32)) + "\n";
  // A link, because it fails if the file exists, as O_EXCL does, and because no process can read half a secret.
  const bool made = ::write(out.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
                    ::fsync(out.get()) == 0 && (::link(temporary.c_str(), file.c_str()) == 0 || errno == EEXIST);
  const int error = errno;
  ::unlink(temporary.c_str());
  errno = error;
  return made;
}

}  // namespace

std::string why_not_private(int fd) {
  struct stat status {};
  if (::fstat(fd, &status) < 0) return std::generic_category().message(errno);
  if (!S_ISREG(status.st_mode)) return "it is not a regular file";
  if (status.st_uid != ::geteuid())
    return "it belongs to the user with the ID " + std::to_string(status.st_uid) + ", not to the one that runs this (" +
           std::to_string(::geteuid()) + "): remove it, or name another file";
  if (status.st_mode & 077) return "others may read or write it: remove it, or give it the mode 600";
  return "";
}

Secret read_secret(const SecretSource& source) {
  if (source.secret == "none") return {"", "MULTINODE_SECRET=none"};
  if (!source.secret.empty()) {
    if (source.secret.size() < shortest_secret)
      throw UsageError("MULTINODE_SECRET must have at least " + std::to_string(shortest_secret) +
                       " characters that others cannot guess");
    return {source.secret, ""};
  }
  if (source.file.empty()) return {"", "HOME is not set"};
  const fs::path file = fs::absolute(source.file);
  for (int attempt = 0;; ++attempt) {
    if (auto text = text_of_secret(file)) return {*text, ""};
    const bool missing = errno == ENOENT;
    if (missing && make_secret(file) && attempt < 200) {
      if (attempt > 0) std::this_thread::sleep_for(50ms);  // NFS may show a file of another node late
      continue;
    }
    const std::string why = std::generic_category().message(errno);
    if (!source.is_default) throw unusable_secret(file, why);
    return {"", file.string() + " cannot be " + (missing ? "made: " : "read: ") + why};
  }
}

std::string token_for(const Secret& secret, const std::string& name) {
  return secret.bytes.empty() ? name : to_hex(hmac_sha256(secret.bytes, "multinode " + name));
}

std::string warning_without_secret(const Secret& secret) {
  return "WARNING: no secret keeps strangers out (" + secret.lacking +
         "): any user who reaches the port and knows the job's number or this user's ID can take a rank, read and "
         "change values, and stop the run or forge its exit status; set MULTINODE_SECRET to the same random text on "
         "all nodes, or MULTINODE_SECRET_FILE to a file of yours that all nodes see";
}

}  // namespace multinode
