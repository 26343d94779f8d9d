// For LD_PRELOAD: a disk that hangs when half of the checkpoint of step 200 is written. After a restart it works.
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

extern "C" int fsync(int file) {
  const char* const attempt = std::getenv("TORCHELASTIC_RESTART_COUNT");
  char name[4096] = "";
  struct stat status {};
  if ((!attempt || *attempt == '0') &&
      readlink(("/proc/self/fd/" + std::to_string(file)).c_str(), name, sizeof name - 1) > 0 &&
      std::string(name).find("/step-0000000200.checkpoint") != std::string::npos && fstat(file, &status) == 0 &&
      ftruncate(file, status.st_size / 2) == 0 && fchmod(file, 0400) == 0)  // a test waits for this mode
    while (true) pause();
  return static_cast<int>(syscall(SYS_fsync, file));
}
