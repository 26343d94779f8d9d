#include "state_folder.hpp"

#include <multinode/address.hpp>
#include <multinode/check.hpp>

#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <thread>

namespace cluster {

namespace fs = std::filesystem;
using multinode::Descriptor;
using multinode::UsageError;
using namespace std::chrono_literals;

namespace {

constexpr std::string_view head_suffix = "-head.pid";
constexpr auto stop_patience = 10s;  // from SIGTERM to SIGKILL

std::string reason() { return std::string(": ") + strerror(errno); }

bool is_locked(const fs::path& file) {
  const Descriptor fd(open(file.c_str(), O_RDONLY | O_CLOEXEC));
  return fd && flock(fd.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

std::vector<fs::path> files(const fs::path& folder, std::string_view beginning, std::string_view end) {
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(beginning) && name.ends_with(end)) found.push_back(entry.path());
  }
  return found;
}

bool is_head(const fs::path& file) { return file.filename().string().ends_with(head_suffix); }

// What a daemon that is gone leaves; where a head followed on another host, token and address are that one's.
void remove_files(const StateFolder& folder, const fs::path& pid_file) {
  std::error_code ignored;
  bool followed = false;
  for (const fs::path& file : files(folder.path(), "", head_suffix))
    followed = followed || (file != pid_file && is_locked(file));
  if (is_head(pid_file) && !followed)
    for (const fs::path& file : {folder.token(), folder.address()}) fs::remove(file, ignored);
  fs::remove(pid_file, ignored);
}

}  // namespace

StateFolder::StateFolder(fs::path path) : path_(fs::absolute(path).lexically_normal()) {
  const std::string name = "--state: the folder " + path_.string();
  std::error_code error;
  fs::create_directories(path_.parent_path(), error);
  if (mkdir(path_.c_str(), 0700) != 0 && errno != EEXIST) throw UsageError(name + " cannot be made" + reason());
  struct stat info {};
  if (lstat(path_.c_str(), &info) != 0) throw UsageError(name + reason());
  if (!S_ISDIR(info.st_mode)) throw UsageError("--state: " + path_.string() + " is no folder");
  if (info.st_uid != geteuid()) throw UsageError(name + " belongs to another user");
  if ((info.st_mode & 077) != 0) throw UsageError(name + " is open to other users: chmod 700 it");
}

fs::path StateFolder::default_path() {
  const char* const home = std::getenv("HOME");
  if (!home || !*home) throw UsageError("HOME is not set: say --state DIR");
  return fs::path(home) / ".multinode-cluster";
}

void StateFolder::write_address(const multinode::Endpoint& head) const {
  const fs::path unfinished = address().string() + "." + std::to_string(getpid());
  std::ofstream file(unfinished);
  file << to_string(head) << '\n' << std::flush;
  if (!file || rename(unfinished.c_str(), address().c_str()) != 0)
    throw UsageError("cannot write " + address().string() + reason());
}

multinode::Endpoint StateFolder::read_address() const {
  std::ifstream file(address());
  std::string line;
  if (!std::getline(file, line))
    throw UsageError("no head is known: there is no " + address().string() +
                     ", which 'cluster start --head' writes; say --address HOST:PORT");
  return multinode::parse_endpoint(line, address().string());
}

PidFile::PidFile(const StateFolder& folder, Role role)
    : folder_(folder),
      path_(folder.path() /
            (multinode::host_name() + "-" + (role == Role::head ? "head" : std::to_string(getpid())) + ".pid")) {
  if (role == Role::head)
    for (const fs::path& file : files(folder.path(), "", head_suffix))
      if (is_locked(file)) {
        const std::string host = file.filename().string();
        throw UsageError("a head runs already on " + host.substr(0, host.size() - head_suffix.size()) +
                         ": 'cluster stop' there ends it; --state DIR keeps a second cluster apart");
      }
  for (int tries = 0; !lock_; ++tries) {
    Descriptor fd(open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) throw UsageError("cannot write " + path_.string() + reason());
    if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) {
      struct stat mine {
      }, there{};  // somebody may have removed the file in between
      if (fstat(fd.get(), &mine) == 0 && stat(path_.c_str(), &there) == 0 && mine.st_ino == there.st_ino)
        lock_ = std::move(fd);
    } else {
      if (tries == 200) throw UsageError("cannot lock " + path_.string() + reason());
      std::this_thread::sleep_for(5ms);  // somebody is looking whether it is locked
    }
  }
  const std::string line = std::to_string(getpid()) + "\n";
  if (ftruncate(lock_.get(), 0) != 0 ||
      write(lock_.get(), line.data(), line.size()) != static_cast<ssize_t>(line.size()))
    throw UsageError("cannot write " + path_.string() + reason());
}

void PidFile::remove() { remove_files(folder_, path_); }

fs::path PidFile::log() const { return fs::path(path_).replace_extension(".log"); }

std::vector<std::string> stop_daemons(const StateFolder& folder, bool force) {
  using Clock = std::chrono::steady_clock;
  struct Daemon {
    fs::path file;
    std::string name;
    Descriptor process;
  };
  std::vector<std::string> said;
  std::vector<Daemon> daemons;
  for (const fs::path& file : files(folder.path(), multinode::host_name() + "-", ".pid")) {
    if (!is_locked(file)) {
      remove_files(folder, file);
      continue;
    }
    pid_t pid = 0;
    std::ifstream(file) >> pid;
    Descriptor process(pid > 0 ? static_cast<int>(syscall(SYS_pidfd_open, pid, 0)) : -1);
    const std::string name = (is_head(file) ? "the head, pid " : "a node, pid ") + std::to_string(pid);
    daemons.push_back({file, name, is_locked(file) ? std::move(process) : Descriptor()});
  }
  const auto send = [](const Daemon& daemon, int number) {
    if (daemon.process) syscall(SYS_pidfd_send_signal, daemon.process.get(), number, nullptr, 0);
  };
  const auto wait = [&](Clock::duration limit, const std::string& how) {
    const auto deadline = Clock::now() + limit;
    for (; !daemons.empty() && Clock::now() < deadline; std::this_thread::sleep_for(5ms))
      std::erase_if(daemons, [&](const Daemon& daemon) {
        pollfd ended{daemon.process.get(), POLLIN, 0};
        if (is_locked(daemon.file) || (daemon.process && poll(&ended, 1, 0) == 0)) return false;
        remove_files(folder, daemon.file);
        said.push_back(how + daemon.name);
        return true;
      });
  };
  if (!force) {
    for (const Daemon& daemon : daemons) send(daemon, SIGTERM);
    wait(stop_patience, "stopped ");
  }
  for (const Daemon& daemon : daemons) send(daemon, SIGKILL);
  wait(stop_patience, "killed ");
  for (const Daemon& daemon : daemons) said.push_back(daemon.name + ", does not end");
  std::ranges::sort(said);
  return said;
}

}  // namespace cluster
