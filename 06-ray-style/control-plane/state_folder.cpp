#include "state_folder.hpp"

#include <multinode/check.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace cluster {

namespace fs = std::filesystem;
using multinode::Descriptor;
using multinode::UsageError;

namespace {

std::string reason() { return std::string(": ") + std::strerror(errno); }

void require_private(const struct stat& info, const std::string& name) {
  if (info.st_uid != geteuid()) throw UsageError(name + " belongs to another user");
  if ((info.st_mode & 077) != 0) throw UsageError(name + " is open to other users: chmod go= it");
}

}  // namespace

StateFolder::StateFolder(fs::path path) : path_(fs::absolute(path).lexically_normal()) {
  const std::string name = "--state: the folder " + path_.string();
  std::error_code ignored;
  fs::create_directories(path_.parent_path(), ignored);
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) throw UsageError(name + " cannot be made" + reason());
  struct stat info {};
  if (lstat(path_.c_str(), &info) != 0) throw UsageError(name + reason());
  if (!S_ISDIR(info.st_mode)) throw UsageError("--state: " + path_.string() + " is not a folder");
  require_private(info, name);
}

fs::path StateFolder::default_path() {
  const char* const home = std::getenv("HOME");
  if (!home || !*home) throw UsageError("HOME is not set: say --state DIR");
  return fs::path(home) / ".multinode-cluster";
}

Descriptor StateFolder::lock() const {
  const std::string file = path_ / "lock";
  Descriptor fd(open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd) throw UsageError("cannot write " + file + reason());
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    throw UsageError("a head that uses " + path_.string() +
                     " is running: 'cluster stop' ends it; --state DIR keeps a second cluster apart");
  return fd;
}

void StateFolder::write(const std::string& name, const std::string& text) const {
  const std::string file = path_ / name, unfinished = file + "." + std::to_string(getpid());
  const Descriptor fd(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) || fsync(fd.get()) != 0 ||
      rename(unfinished.c_str(), file.c_str()) != 0) {
    const std::string why = reason();
    unlink(unfinished.c_str());
    throw UsageError("cannot write " + file + why);
  }
}

std::string StateFolder::read_key() const {
  const std::string file = path_ / "key.pem";
  const Descriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (!fd) throw UsageError("the cluster's key " + file + reason() + "; 'cluster start --head' makes it");
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) throw UsageError(file + reason());
  require_private(info, file);
  std::array<char, 16 << 10> text{};
  const ssize_t count = read(fd.get(), text.data(), text.size());
  std::string key(text.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
  if (key.find("PRIVATE KEY") == key.npos || key.find("END CERTIFICATE") == key.npos)
    throw UsageError(file + " does not contain a key and its certificate");
  return key;
}

multinode::Endpoint StateFolder::read_address() const {
  std::ifstream file(path_ / "address");
  std::string line;
  if (!std::getline(file, line))
    throw UsageError("cannot find the head: there is no " + (path_ / "address").string() +
                     ", which 'cluster start --head' writes; say --address HOST:PORT");
  return multinode::parse_endpoint(line, (path_ / "address").string());
}

}  // namespace cluster
