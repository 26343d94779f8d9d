// What FileStore alone has: its file, damaged, shortened, foreign, unwritable; a writer that dies; a lock that is kept.
#include <multinode/check.hpp>
#include <multinode/file_store.hpp>
#include <testing/program_test.hpp>
#include <testing/temporary_folder.hpp>

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

using namespace multinode;
using namespace std::chrono_literals;
namespace fs = std::filesystem;

namespace {

class FileStoreTest : public ::testing::Test {
 protected:
  std::string bytes() const { return multinode::testing::text_of(path_); }
  void write(const std::string& bytes) const {
    std::ofstream file(path_, std::ios::binary | std::ios::trunc);
    file << bytes;
  }
  // The message of the UsageError, which is one line and names the file.
  std::string refusal() const {
    try {
      FileStore store(path_);
      store.get("k", 0ms);
    } catch (const UsageError& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find(path_.string()), std::string::npos) << what;
      EXPECT_EQ(what.find('\n'), std::string::npos) << what;
      return what;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "another kind of exception: " << error.what();
      return "";
    }
    ADD_FAILURE() << "the file was taken";
    return "";
  }

  const multinode::testing::TemporaryFolder folder_;
  fs::path path_ = folder_ / "store";
};

TEST_F(FileStoreTest, IsForItsOwnerAlone) {
  const auto before = ::umask(0);
  FileStore store(path_);
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
}

TEST_F(FileStoreTest, OutlivesItsWriters) {
  { FileStore(path_).set("k", "v"); }
  EXPECT_EQ(FileStore(path_).get("k", 0ms), "v");
}

TEST_F(FileStoreTest, ForeignFilesAreRefusedAndLeftAlone) {
  for (const std::string content : {"hello", "{\"json\": 1}\n", "mnfile\x02\n and more", "m\n"}) {
    write(content);
    refusal();
    EXPECT_EQ(bytes(), content);
  }
}

TEST_F(FileStoreTest, WhatIsNoFileIsRefused) {
  path_ = folder_.path();
  refusal();
  path_ = "/dev/full";
  refusal();
  path_ = "/dev/null";
  refusal();
  path_ = folder_ / "missing" / "store";
  EXPECT_NE(refusal().find("No such file or directory"), std::string::npos);
}

TEST_F(FileStoreTest, EveryTruncationIsRepairedOrRefused) {
  std::string all;
  {
    FileStore store(path_);
    store.set("a", "1");
    store.set("b", "second value");
    all = bytes();
  }
  const auto second = all.find("second value") - 1 - 4 - 8;  // where b's record starts
  for (std::size_t n = 0; n < all.size(); ++n) {
    write(all.substr(0, n));
    FileStore store(path_), other(path_);
    EXPECT_THROW(store.get("b", 0ms), StoreTimeout) << n;
    if (n >= second)
      EXPECT_EQ(store.get("a", 0ms), "1") << n;
    else
      EXPECT_THROW(store.get("a", 0ms), StoreTimeout) << n;
    store.set("c", "3");
    EXPECT_EQ(other.get("c", 0ms), "3") << n;
    EXPECT_EQ(FileStore(path_).get("c", 0ms), "3") << n;
  }
}

TEST_F(FileStoreTest, EveryFlippedBitIsNoticed) {
  std::string all;
  {
    FileStore store(path_);
    store.set("a", "1");
    store.set("b", "2");
    all = bytes();
  }
  for (std::size_t n = 0; n < all.size(); ++n)
    for (int bit = 0; bit < 8; ++bit) {
      auto damaged = all;
      damaged[n] = static_cast<char>(damaged[n] ^ (1 << bit));
      write(damaged);
      try {
        FileStore store(path_);
        // A length that became too long looks like a record whose writer died: then it and what follows is not there.
        // No value is ever wrong.
        for (const auto& [key, value] : {std::pair("a", "1"), std::pair("b", "2")}) try {
            EXPECT_EQ(store.get(key, 0ms), value) << "byte " << n << " bit " << bit;
          } catch (const StoreTimeout&) {
          }
        EXPECT_THROW((store.get("a", 0ms), store.get("b", 0ms)), StoreTimeout) << "byte " << n << " bit " << bit;
      } catch (const UsageError& error) {
        EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos);
      }
    }
}

TEST_F(FileStoreTest, AFileThatGoesAwayIsLost) {
  FileStore store(path_);
  store.set("k", "v");
  fs::remove(path_);
  EXPECT_THROW(store.set("k", "w"), StoreLost);
  EXPECT_THROW(store.get("k", 10s), StoreLost);
}

TEST_F(FileStoreTest, AFileThatIsShortenedInUseIsRefused) {
  FileStore store(path_);
  store.set("k", "v");
  fs::resize_file(path_, 8);
  EXPECT_THROW(store.set("k", "w"), UsageError);
}

TEST_F(FileStoreTest, AReadOnlyFolderIsOneClearError) {
  fs::permissions(folder_.path(), fs::perms::owner_read | fs::perms::owner_exec);
  if (::geteuid() == 0) {
    // Root may write anywhere: another user tries, in another process.
    ::fflush(nullptr);
    const pid_t child = ::fork();
    if (child == 0) {
      if (::chown(folder_.path().c_str(), 65534, 65534) != 0 || ::setuid(65534) != 0) ::_exit(9);
      try {
        FileStore store(path_);
      } catch (const UsageError& error) {
        ::_exit(std::string(error.what()).find(path_.string() + ": Permission denied") == std::string::npos ? 8 : 0);
      } catch (...) {
        ::_exit(7);
      }
      ::_exit(6);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(WIFEXITED(status) ? WEXITSTATUS(status) : -1, 0);
  } else {
    EXPECT_NE(refusal().find("Permission denied"), std::string::npos);
  }
  fs::permissions(folder_.path(), fs::perms::owner_all);
}

TEST_F(FileStoreTest, AFullDiskIsOneClearErrorAndHarmsNothing) {
  const auto disk = folder_ / "disk";
  fs::create_directory(disk);
  if (::mount("multinode-test", disk.c_str(), "tmpfs", 0, "size=256k") != 0)
    GTEST_SKIP() << "a small tmpfs cannot be mounted here: " << std::strerror(errno);
  path_ = disk / "store";
  {
    FileStore store(path_), other(path_);
    store.set("before", "1");
    std::string refused;
    for (int i = 0; i < 100 && refused.empty(); ++i) try {
        store.set("k" + std::to_string(i), std::string(10'000, 'x'));
      } catch (const StoreRefused& error) {
        refused = error.what();
      }
    EXPECT_NE(refused.find(path_.string() + ": No space left on device"), std::string::npos) << refused;
    EXPECT_EQ(other.get("before", 0ms), "1");
    EXPECT_EQ(other.get("k0", 0ms), std::string(10'000, 'x'));
    EXPECT_EQ(FileStore(path_).get("before", 0ms), "1");
  }
  EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

TEST_F(FileStoreTest, AKilledWriterHarmsNobody) {
  FileStore store(path_);
  std::int64_t sum = 0;
  for (int i = 0; i < 5; ++i) {
    multinode::testing::Process writer({STORE_CLIENT, "file:" + path_.string(), "add", "n", "1000000"});
    // In the midst of it, as soon as it has written something.
    while (store.add("n", 0) == sum) ASSERT_FALSE(writer.wait_for("error", 1ms));
    writer.signal(SIGKILL);
    writer.wait();
    const auto now = store.add("n", 0);
    EXPECT_GT(now, sum);
    sum = now;
  }
  EXPECT_EQ(FileStore(path_).get("n", 0ms), std::to_string(sum));
}

TEST_F(FileStoreTest, AKeptLockIsATimeout) {
  FileStore store(path_);
  store.set("k", "v");
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  ASSERT_EQ(::fcntl(fd, F_OFD_SETLK, &lock), 0);
  const auto start = std::chrono::steady_clock::now();
  try {
    store.get("k", 200ms);
    ADD_FAILURE() << "it read past another's lock";
  } catch (const StoreTimeout& error) {
    EXPECT_NE(std::string(error.what()).find(path_.string()), std::string::npos) << error.what();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 20s);
  ::close(fd);
  EXPECT_EQ(store.get("k", 200ms), "v");
}

}  // namespace
