#include "state_folder.hpp"

#include <multinode/base/check.hpp>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace cluster {

namespace fs = std::filesystem;
using multinode::Descriptor;
using multinode::UsageError;

namespace {

std::string reason() { return std::string(": ") + std::strerror(errno); }

// `type` is S_IFDIR or S_IFREG.
void require_private(const fs::path& path, mode_t type, const std::string& what) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) throw UsageError(what + " " + path.string() + reason());
  if ((info.st_mode & S_IFMT) != type)
    throw UsageError(what + " " + path.string() + " is not a " + (type == S_IFDIR ? "folder" : "file"));
  if (info.st_uid != geteuid()) throw UsageError(what + " " + path.string() + " belongs to another user");
  if ((info.st_mode & 077) != 0) throw UsageError(what + " " + path.string() + " is open to other users: chmod go= it");
}

}  // namespace

StateFolder::StateFolder(fs::path path) : path_(fs::absolute(path).lexically_normal()) {
  std::error_code ignored;
  fs::create_directories(path_.parent_path(), ignored);
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST)
    throw UsageError("--state: cannot make " + path_.string() + reason());
  require_private(path_, S_IFDIR, "--state:");
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
  const std::string file = path_ / name, unfinished = file + ".unfinished";
  const Descriptor fd(open(unfinished.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      rename(unfinished.c_str(), file.c_str()) != 0)
    throw UsageError("cannot write " + file + reason());
}

std::string StateFolder::read_key() const {
  const fs::path file = path_ / "key.pem";  // 'cluster start --head' makes it
  require_private(file, S_IFREG, "the cluster's key");
  std::ostringstream key;
  key << std::ifstream(file).rdbuf();
  if (key.str().find("PRIVATE KEY") == std::string::npos || key.str().find("END CERTIFICATE") == std::string::npos)
    throw UsageError(file.string() + " does not contain a key and its certificate");
  return key.str();
}

multinode::Endpoint StateFolder::read_address() const {
  std::string line;
  if (!std::getline(std::ifstream(path_ / "address"), line))
    throw UsageError("cannot find the head: there is no " + (path_ / "address").string() +
                     ", which 'cluster start --head' writes; say --address HOST:PORT");
  return multinode::parse_endpoint(line, (path_ / "address").string());
}

}  // namespace cluster
