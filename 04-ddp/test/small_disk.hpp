// small_disk.hpp: a disk in a folder's place, for tests of what happens when it is full.
#pragma once

#include <sched.h>
#include <sys/mount.h>

#include <filesystem>
#include <utility>

// Mounted in a namespace of this process's own, so that nothing is left where the process is killed.
class SmallDisk {
 public:
  SmallDisk(std::filesystem::path folder, unsigned long flags, const char* options)
      : folder_(std::move(folder)),
        mounted_(unshare(CLONE_NEWNS) == 0 && mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
                 mount("none", folder_.c_str(), "tmpfs", flags, options) == 0) {}
  ~SmallDisk() {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);  // or the folder could not be removed
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }

 private:
  std::filesystem::path folder_;
  bool mounted_;
};
