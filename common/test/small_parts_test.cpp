// Small parts: files of other users and in their folders, other people's text, deep JSON, limits of a container.
#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/output.hpp>
#include <multinode/node/limits.hpp>
#include <test/support/says.hpp>
#include <test/support/temporary_folder.hpp>

#include <gtest/gtest.h>

#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iomanip>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

namespace {

using namespace multinode;

// Root writes into a user's folder: links and pipes of the names that root uses lead nowhere.
TEST(Files, ALinkOrPipeThatAwaitsTheWriterIsReplaced) {
  const multinode::testing::TemporaryFolder users, other;
  other.write("precious", "keep me");
  for (const char* name : {"whole", "new"}) {
    const auto file = users / name;
    const auto write = [&](const std::string& text) {
      if (std::string(name) == "whole") return write_whole(file, text);
      const Descriptor made = create_new(file);
      write_all(made.get(), text, file);
    };
    std::filesystem::create_symlink(other / "precious", file);
    write("1");
    EXPECT_EQ(multinode::testing::text_of(file), "1");
    std::filesystem::remove(file);
    std::filesystem::create_hard_link(other / "precious", file);
    write("2");
    EXPECT_EQ(multinode::testing::text_of(file), "2");
    std::filesystem::remove(file);
    ASSERT_EQ(mkfifo(file.c_str(), 0666), 0);
    write("3");
    EXPECT_EQ(multinode::testing::text_of(file), "3");
    EXPECT_TRUE(std::filesystem::is_regular_file(std::filesystem::symlink_status(file)));
    std::filesystem::remove(file);
  }
  EXPECT_EQ(multinode::testing::text_of(other / "precious"), "keep me\n");
  EXPECT_EQ(names_in(users.path()), std::vector<std::string>{});  // nothing aside is left
  EXPECT_THROW(write_whole(users / "none/file", ""), std::system_error);
  write_whole("/dev/null", "goes nowhere");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

// Files that grow, or whose folder is not the writer's: what is not a plain file of one name is refused.
TEST(Files, ALinkOrPipeIsNotOpenedInPlace) {
  const multinode::testing::TemporaryFolder users, other;
  other.write("precious", "keep me");
  const auto file = users / "file";
  const auto refused = [&] {
    for (const bool append : {true, false}) {
      try {
        open_in_place(file, append);
        ADD_FAILURE() << "it was opened";
      } catch (const std::system_error& why) {
        EXPECT_NE(std::string(why.what()).find("file, where a link or a pipe lies: remove it"), std::string::npos);
      }
    }
    std::filesystem::remove(file);
  };
  std::filesystem::create_symlink(other / "precious", file);
  refused();
  std::filesystem::create_symlink(other / "new", file);
  refused();
  std::filesystem::create_hard_link(other / "precious", file);
  refused();
  ASSERT_EQ(mkfifo(file.c_str(), 0666), 0);
  const Descriptor reader(::open(file.c_str(), O_RDONLY | O_NONBLOCK));
  refused();
  ASSERT_EQ(mkfifo(file.c_str(), 0666), 0);  // without a reader, where a usual open() waits
  refused();
  EXPECT_EQ(names_in(other.path()), std::vector<std::string>{"precious"});
  EXPECT_EQ(multinode::testing::text_of(other / "precious"), "keep me\n");

  for (const auto& [append, text] : {std::pair(true, "1"), {true, "12"}, {false, "3"}}) {
    write_all(open_in_place(file, append).get(), std::string(1, text[std::strlen(text) - 1]), file);
    EXPECT_EQ(multinode::testing::text_of(file), text);
  }
  EXPECT_THROW(open_in_place(users / "none/file", true), std::system_error);
  const Pipe pipe = make_pipe();  // a shell's >(...)
  const std::string of_shell = "/dev/fd/" + std::to_string(pipe.to.get());
  write_all(open_in_place(of_shell, false).get(), "x", of_shell);
  char x = 0;
  EXPECT_EQ(::read(pipe.from.get(), &x, 1), 1);
}

TEST(Files, InAFolderOfAllUsersOnlyOwnFilesAreWritten) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can give a file to another user";
  const multinode::testing::TemporaryFolder folder;
  const auto file = folder / "file", own = folder / "own";
  const auto give_away = [](const std::filesystem::path& path) { return lchown(path.c_str(), 65534, 65534); };
  for (const mode_t mode : {0777, 01777}) {
    ASSERT_EQ(chmod(folder.path().c_str(), mode), 0);
    folder.write("file", "theirs");
    ASSERT_EQ(give_away(file), 0);
    for (const bool append : {true, false}) EXPECT_THROW(open_in_place(file, append), std::system_error);
    EXPECT_EQ(multinode::testing::text_of(file), "theirs\n");
    std::filesystem::remove(file);
    folder.write("own", "ours");
    write_all(open_in_place(own, true).get(), "1", own);
    EXPECT_EQ(multinode::testing::text_of(own), "ours\n1");
    const Descriptor before(::open(own.c_str(), O_RDONLY));  // a link that came and went may have brought it here
    write_all(open_in_place(own, false).get(), "2", own);
    EXPECT_EQ(multinode::testing::text_of(own), "2");
    EXPECT_EQ(lseek(before.get(), 0, SEEK_END), 6);
    EXPECT_EQ(why_not_own(folder.path()).empty(), mode == 01777);
  }
  make_folders(folder / "made");
  EXPECT_EQ(why_not_own(folder / "made/"), "");
  ASSERT_EQ(give_away(folder / "made"), 0);
  EXPECT_EQ(why_not_own(folder / "made/"),
            "it is another user's, in a folder in which every user can write: name another one");
}

TEST(Text, OfOthersDrivesNoTerminal) {
  EXPECT_EQ(without_controls("\x1b]0;a title\a \x7f \xc2\x9b"
                             "2J \x9b"
                             "1m \r\b\ttab\nline"),
            "?]0;a title? ? ??2J ?1m ??\ttab\nline");
  EXPECT_EQ(one_line("a\nb\tc"), "a b c");
  const std::string words = "é € “quoted” 日本 😀 \xed\x9f\xbf";
  EXPECT_EQ(without_controls(words), words);
  // Cut off, too long, a surrogate, beyond Unicode, a byte behind nothing.
  for (const std::string bytes :
       {"\xe2\x82", "\xc0\x9b", "\xe0\x82\x9b", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff", "\x80"})
    EXPECT_EQ(without_controls(bytes), std::string(bytes.size(), '?'));
}

TEST(Text, OfAStreamDrivesNoTerminal) {
  std::ostringstream stream;
  {
    const CleanOutput clean(stream);
    stream << "a\x1b[2J" << std::setw(4) << "é" << '\x1b' << 7 << std::endl;
  }
  EXPECT_EQ(stream.str(), "a?[2J  é?7\n");
  stream << "\x1b";
  EXPECT_EQ(stream.str().back(), '\x1b');
  ::testing::internal::CaptureStderr();
  say("program", "cannot read \x1b[2J\nprogram: RIGHT");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "program: cannot read ?[2J program: RIGHT\n");
}

TEST(Files, OfAStrangerARegularFileOfThatSizeIsRead) {
  const multinode::testing::TemporaryFolder folder;
  const auto file = folder / "file";
  const auto expect = [&](const char* name, const std::string& says, Links links = Links::refused) {
    std::string text;
    try {
      text = ForeignFile(folder / name, 5, links).text();
    } catch (const UnfitFile& error) {
      text = std::string(error.what()).substr(("cannot read : " + (folder / name).string()).size());
    }
    EXPECT_EQ(text, says) << name;
  };
  folder.write("file", "text");
  folder.write("six", "bytes");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0666), 0);
  for (const char* name : {".", "pipe", "/dev/zero"}) expect(name, "it is not a regular file");
  expect("six", "6 bytes, and at most 5 are read");
  for (const char* to : {"file", "none", "pipe"}) {
    std::filesystem::create_symlink(to, folder / to += "-link");
    expect((std::string(to) + "-link").c_str(), "it is a link, and links are not followed here");
  }
  expect("file-link", "text\n", Links::followed);
  expect("none-link", "it is a link to nothing", Links::followed);
  expect("pipe-link", "it is not a regular file", Links::followed);
  ForeignFile shrinks(file, 5, Links::refused), grows(file, 5, Links::refused);
  std::filesystem::resize_file(file, 2);
  EXPECT_EQ(shrinks.text(), "te");
  std::filesystem::resize_file(file, 1 << 20);
  EXPECT_SAYS(multinode::testing::error_text<UnfitFile>([&] { grows.text(); }), "it grew to more than 5 bytes");
}

TEST(Json, WhatOverflowsTheStackIsNotParsed) {
  const std::string right = std::string(64, '[') + std::string(64, ']');
  EXPECT_EQ(json_text(parse_json("// \"\n" + right, true)), right);
  EXPECT_THROW(parse_json("[" + right + "]"), nlohmann::json::exception);
}

TEST(Limits, TheLowestLimitOfTheCgroupsCounts) {
  const multinode::testing::TemporaryFolder root;
  root.write("proc/self/cgroup", "5:cpu,cpuacct:/job\n4:memory:/job\n0::/a/b");
  root.write("sys/fs/cgroup/a/cpu.max", "150000 100000");
  root.write("sys/fs/cgroup/a/b/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "400000");
  root.write("sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000");
  root.write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "2097152");
  root.write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712");
  EXPECT_EQ(read_cgroup(root.path()).cpus, 1.5);
  EXPECT_EQ(read_cgroup(root.path()).memory_bytes, 2097152);
  EXPECT_EQ(usable_cpus(root.path()), 1);  // 1.5, rounded down
  EXPECT_EQ(usable_cpus("/nowhere"), std::ssize(allowed_cpus()));
}

TEST(Limits, AKillForLackOfMemoryIsKnown) {
  const multinode::testing::TemporaryFolder root;
  EXPECT_EQ(OomWatch(root.path()).reason(OomWatch::see_dmesg), " (if for lack of memory, \"dmesg\" says it)");
  const auto kills = [](int number) { return "low 0\noom 3\noom_kill " + std::to_string(number) + "\n"; };
  for (const auto& [cgroups, limit, own, parent] :
       {std::tuple("0::/job/task", "job/memory.max", "job/task/memory.events", "job/memory.events"),
        {"4:memory:/job/task", "memory/job/memory.limit_in_bytes", "memory/job/task/memory.oom_control",
         "memory/job/memory.oom_control"}}) {
    const std::string cgroup = "sys/fs/cgroup/";
    root.write("proc/self/cgroup", cgroups);
    root.write(cgroup + own, kills(4));
    EXPECT_EQ(OomWatch(root.path()).reason(), "");
    const OomWatch unlimited(root.path());
    root.write(cgroup + own, kills(5));
    EXPECT_EQ(unlimited.reason(), ": out of memory");
    root.write(cgroup + limit, "83886080");
    root.write(cgroup + parent, kills(7));
    const OomWatch watch(root.path());
    EXPECT_EQ(watch.reason(), "");
    root.write(cgroup + parent, kills(8));  // another task of the job
    EXPECT_EQ(watch.reason(), ": out of memory (limit 80 MiB)");
  }
}

TEST(Limits, NonsenseIsUnlimited) {
  const multinode::testing::TemporaryFolder root;
  root.write("proc/self/cgroup", "no colons\n:\n4:memory:/docker/4f\n1:cpu:/docker/4f\n0::/a");
  root.write("sys/fs/cgroup/a/cpu.max", "100000 0");
  root.write("sys/fs/cgroup/a/memory.max", "12 apples");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_FALSE(read_cgroup(root.path()).cpus);
  EXPECT_FALSE(read_cgroup(root.path()).memory_bytes);
  root.write("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000");  // mounted here: the host's path is not visible
  EXPECT_EQ(read_cgroup(root.path()).cpus, 2.5);
}

}  // namespace
