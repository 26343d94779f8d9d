// The file of --rendezvous file:PATH: its permissions, files that are refused and left unchanged, and waiting for it.
// The file of the secret: who makes it, and when it is refused.
#include <multinode/base/check.hpp>
#include <multinode/net/socket.hpp>
#include <multinode/store/rendezvous_file.hpp>
#include <multinode/store/secret.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <future>

using namespace multinode;
using namespace std::chrono_literals;
namespace fs = std::filesystem;
using multinode::testing::error_text;

namespace {

class RendezvousFile : public ::testing::Test {
 protected:
  void write(const std::string& bytes) const {
    std::ofstream(path_, std::ios::binary | std::ios::trunc) << bytes << std::flush;
    fs::permissions(path_, fs::perms(0600));
  }
  void tell(const std::string& attempt = "run/0") const { write_place(path_, attempt, {{"10.0.0.1", 1234}, "token"}); }
  std::string read(const std::string& attempt = "run/0", std::chrono::milliseconds timeout = 0ms) const {
    return with_token(read_place(path_, attempt, timeout));
  }
  // The message for rank 0 and for the others: a UsageError of one line that names the file.
  std::string refusal() const {
    EXPECT_SAYS(error_text<UsageError>([&] { tell(); }), path_.string());
    const std::string what = error_text<UsageError>([&] { read(); });
    EXPECT_SAYS(what, path_.string());
    return what;
  }

  const multinode::testing::TemporaryFolder folder_;
  fs::path path_ = folder_ / "meeting";
};

TEST_F(RendezvousFile, IsReadableByItsOwnerOnlyAndLeavesNoOtherFile) {
  const auto before = ::umask(0);
  tell();
  tell();
  ::umask(before);
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_.path()), {}), 1);
  EXPECT_EQ(read(), "10.0.0.1:1234/token");
}

TEST_F(RendezvousFile, IsWaitedForUntilThatOfItsAttemptCame) {
  for (const std::string attempt : {"job 1/0", "job 1/1", "/0"}) {
    auto other = std::async(std::launch::async, [&] { return read(attempt, 20s); });
    EXPECT_EQ(other.wait_for(50ms), std::future_status::timeout);
    tell(attempt);
    EXPECT_EQ(other.get(), "10.0.0.1:1234/token");
  }
}

TEST_F(RendezvousFile, ADeadlineNamesTheFile) {
  for (const bool other_run : {false, true}) {
    if (other_run) tell("run/1");
    const std::string what = error_text<StoreTimeout>([&] { read("run/0", 100ms); });
    EXPECT_SAYS(what, path_.string() + " within 100 ms");
    EXPECT_EQ(what.find("another run") != std::string::npos, other_run) << what;
  }
}

TEST_F(RendezvousFile, ForeignFilesAreRefusedAndLeftAlone) {
  for (const std::string content : {"", "hello", "{\"json\": 1}\n", "multinode store\n", "multinode store\nrun/0\n",
                                    "multinode store\nrun/0\n10.0.0.1:1", "multinode store\nrun/0\n10.0.0.1:1\n\n"}) {
    write(content);
    refusal();
    EXPECT_EQ(multinode::testing::text_of(path_), content);
  }
  write("multinode store\nrun/0\nnowhere\n");
  EXPECT_THROW(read(), UsageError);
}

TEST_F(RendezvousFile, FoldersAndDevicesAreRefused) {
  path_ = folder_.path();
  refusal();
  path_ = "/dev/full";
  refusal();
  path_ = "/dev/null";
  refusal();
  path_ = folder_ / "missing" / "meeting";
  EXPECT_SAYS(refusal(), "No such file or directory");
}

// A file that another user has planted would lead the ranks to a store of his.
TEST_F(RendezvousFile, OneThatAnotherUserMadeOrMayWriteIsRefused) {
  tell();
  for (const unsigned mode : {0620u, 0602u, 0640u, 0604u, 0666u}) {
    fs::permissions(path_, fs::perms(mode));
    EXPECT_SAYS(refusal(), "others may read or write it");
  }
  fs::permissions(path_, fs::perms(0600));
  EXPECT_EQ(read(), "10.0.0.1:1234/token");
  fs::rename(path_, folder_ / "elsewhere");
  fs::create_symlink(folder_ / "elsewhere", path_);
  EXPECT_SAYS(refusal(), "it is a link");
  fs::remove(path_);
  fs::rename(folder_ / "elsewhere", path_);
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  ASSERT_EQ(::chown(path_.c_str(), 65534, 65534), 0);
  EXPECT_SAYS(refusal(), "it belongs to the user with the ID 65534, not to the one that runs this (0)");
}

class SecretFile : public ::testing::Test {
 protected:
  SecretSource default_file() const { return {"", path_.string(), true}; }
  SecretSource named_file() const { return {"", path_.string(), false}; }
  std::string refusal() const {
    const std::string what = error_text<UsageError>([&] { read_secret(named_file()); });
    EXPECT_EQ(error_text<UsageError>([&] { read_secret(default_file()); }), what);
    EXPECT_SAYS(what, path_.string());
    return what;
  }

  const multinode::testing::TemporaryFolder folder_;
  fs::path path_ = folder_ / "home" / "secret";
  SecretFile() { fs::create_directory(folder_ / "home"); }
};

TEST_F(SecretFile, IsMadeOnceByManyProcesses) {
  path_ = folder_ / "new" / "secret";
  std::vector<std::future<Secret>> running;
  for (int i = 0; i < 32; ++i)
    running.push_back(std::async(std::launch::async, [&] { return read_secret(default_file()); }));
  const std::string first = running[0].get().bytes;
  EXPECT_EQ(first.size(), 64u);
  for (std::size_t i = 1; i < running.size(); ++i) EXPECT_EQ(running[i].get().bytes, first);
  struct stat status {};
  ASSERT_EQ(::stat(path_.c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0600u);
  EXPECT_EQ(std::distance(fs::directory_iterator(folder_ / "new"), {}), 1);
  path_ = folder_ / "other";
  EXPECT_NE(read_secret(named_file()).bytes, first);
}

TEST_F(SecretFile, OneThatOthersCanReadOrWriteIsRefused) {  // by the rule of the rendezvous file
  read_secret(named_file());
  fs::permissions(path_, fs::perms(0640));
  EXPECT_SAYS(refusal(), "others may read or write it");
  fs::permissions(path_, fs::perms(0600));
  std::ofstream(path_) << "short\n" << std::flush;
  EXPECT_SAYS(refusal(), "fewer than 16 characters");
}

TEST_F(SecretFile, WhereNoneCanBeMadeOneLineSaysSo) {
  path_ = "/dev/null/secret";
  const Secret none = read_secret(default_file());
  EXPECT_EQ(none.bytes, "");
  EXPECT_SAYS(none.lacking, "/dev/null/secret");
  EXPECT_SAYS(error_text<UsageError>([&] { read_secret(named_file()); }), "/dev/null/secret");
  EXPECT_EQ(token_for(none, "job 7/0"), "job 7/0");
}

TEST_F(SecretFile, TheVariablesCount) {
  const auto source = [](const Environment& environment) { return read_secret_source(environment); };
  EXPECT_EQ(source({{"HOME", "/h"}}).file, "/h/.multinode/secret");
  EXPECT_TRUE(source({{"HOME", "/h"}}).is_default);
  EXPECT_FALSE(source({{"HOME", "/h"}, {"MULTINODE_SECRET_FILE", "/f"}}).is_default);
  EXPECT_SAYS(read_secret(source({})).lacking, "HOME is not set");
  EXPECT_SAYS(read_secret(source({{"MULTINODE_SECRET", "none"}})).lacking, "MULTINODE_SECRET=none");
  EXPECT_SAYS(error_text<UsageError>([&] { read_secret(source({{"MULTINODE_SECRET", "short"}})); }), "at least 16");
  const Secret one = read_secret(source({{"MULTINODE_SECRET", "0123456789abcdef"}}));
  EXPECT_NE(token_for(one, "job 7/0"), token_for(one, "job 8/0"));
  EXPECT_NE(token_for(one, "job 7/0"), token_for({"fedcba9876543210", ""}, "job 7/0"));
}

TEST_F(RendezvousFile, PermissionDeniedSaysWhoNeedsIt) {
  tell();
  fs::permissions(path_, fs::perms::none);
  fs::permissions(folder_.path(), fs::perms(0555));
  const uid_t me = ::geteuid(), nobody = 65534;
  // root may read and write everything
  if (me == 0 && ::seteuid(nobody) != 0) GTEST_SKIP() << "no other user in this container: " << std::strerror(errno);
  std::vector<std::string> refusals{refusal()};
  path_ = folder_ / "new";
  refusals.push_back(error_text<UsageError>([&] { tell(); }));  // the folder is read-only for this user
  ASSERT_EQ(::seteuid(me), 0);
  fs::permissions(folder_.path(), fs::perms::owner_all);
  for (const std::string& what : refusals)
    EXPECT_SAYS(what, "Permission denied; every rank must be able to read it, and rank 0");
}

TEST_F(RendezvousFile, AFullDiskIsOneClearErrorAndLeavesNothing) {
  const auto disk = folder_ / "disk";
  fs::create_directory(disk);
  if (::mount("multinode-test", disk.c_str(), "tmpfs", 0, "size=64k") != 0)
    GTEST_SKIP() << "a small tmpfs cannot be mounted here: " << std::strerror(errno);
  path_ = disk / "meeting";
  std::ofstream(disk / "rest") << std::string(128 << 10, 'x') << std::flush;
  EXPECT_SAYS(error_text<UsageError>([&] { tell(); }), "No space left on device");
  EXPECT_EQ(std::distance(fs::directory_iterator(disk), {}), 1);
  EXPECT_EQ(::umount2(disk.c_str(), MNT_DETACH), 0);
}

}  // namespace
