#include "ddp/checkpoint.hpp"
#include "idx_files.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/files.hpp>
#include <multinode/net/address.hpp>
#include <test/support/json_lines.hpp>
#include <test/support/says.hpp>

#include <gtest/gtest.h>

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <limits>

namespace checkpoint_test {

namespace fs = std::filesystem;
using ddp::NamedBlock;
using multinode::names_in;
using multinode::testing::error_text;

// Parameters and a part of an optimizer's state, as a model has them.
struct Model {
  std::vector<float> weights;
  std::vector<double> momentum;
  std::vector<float> nothing;

  explicit Model(float start, std::size_t rows = 3) : weights(rows * 2, start), momentum(4, start), nothing() {
    for (std::size_t i = 0; i < weights.size(); ++i) weights[i] += static_cast<float>(i);
  }
  std::vector<NamedBlock> blocks() {
    return {{"weights", {weights.size() / 2, 2}, std::span(weights)},
            {"momentum of weights", {4}, std::span(momentum)},
            {"nothing", {0, 7}, std::span(nothing)}};
  }
  bool operator==(const Model&) const = default;
};

TEST(Checkpoint, GivesBackEveryBit) {
  const TemporaryFolder folder;
  Model written(1);
  written.weights[2] = std::bit_cast<float>(0x7fc12345u);  // a NaN with a message
  written.weights[3] = -0.0f;
  written.momentum[1] = std::numeric_limits<double>::denorm_min();
  const nlohmann::json state = {{"epoch", 3}, {"loss", 0.1 + 0.2}, {"seed", ~std::uint64_t{0}}, {"text", "läuft"}};
  ddp::write_checkpoint(folder / "a", state, written.blocks());
  Model read(9);
  const nlohmann::json again = ddp::read_checkpoint(folder / "a", read.blocks());
  EXPECT_EQ(again, state);
  EXPECT_EQ(again.at("loss").get<double>(), 0.1 + 0.2);
  EXPECT_EQ(0, std::memcmp(read.weights.data(), written.weights.data(), read.weights.size() * sizeof(float)));
  EXPECT_EQ(0, std::memcmp(read.momentum.data(), written.momentum.data(), read.momentum.size() * sizeof(double)));
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
}

TEST(Checkpoint, EveryCutAndEveryWrongBitIsFound) {
  const TemporaryFolder folder;
  Model model(1);
  ddp::write_checkpoint(folder / "a", {{"step", 5}}, model.blocks());
  const std::string text = multinode::testing::text_of(folder / "a");
  const std::vector<std::uint8_t> whole(text.begin(), text.end());
  const std::size_t elements = 8 + whole[0] + 256u * whole[1];
  Model read(9);
  const auto error = [&](std::span<const std::uint8_t> bytes) {
    write_file(folder / "b", {bytes.begin(), bytes.end()});
    return error_text<ddp::DamagedCheckpoint>([&] { ddp::read_checkpoint(folder / "b", read.blocks()); });
  };
  const std::string name = (folder / "b").string();
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_TRUE(error(std::span(whole).first(size)).starts_with(name + ": a checkpoint cut off")) << size;
  for (std::size_t bit = 0; bit < 8 * whole.size(); ++bit) {
    auto wrong = whole;
    wrong[bit / 8] ^= static_cast<std::uint8_t>(1 << bit % 8);
    const std::string says = error(wrong);
    EXPECT_TRUE(says.starts_with(name + ": ")) << bit << says;
    EXPECT_TRUE(bit < 8 * elements || says == name + ": a damaged checkpoint (its checksum is wrong)") << says;
  }
  EXPECT_EQ(read, Model(9)) << "blocks were touched";
  auto longer = whole;
  longer.resize(whole.size() + 3);
  EXPECT_SAYS(error(longer), name + ": 3 bytes behind the checkpoint");
}

TEST(Checkpoint, WhatIsNoneIsRefused) {
  const TemporaryFolder folder;
  Model model(9);
  const auto error = [&](const std::string& name) {
    return error_text<ddp::DamagedCheckpoint>([&] { ddp::read_checkpoint(folder / name, model.blocks()); });
  };
  const std::string folder_name = folder.path().string();
  write_file(folder / "text", std::vector<std::uint8_t>(100, 'a'));
  EXPECT_EQ(error("text"), folder_name + "/text: not a checkpoint (it does not begin like a safetensors file)");
  write_file(folder / "empty", {});
  EXPECT_EQ(error("empty"), folder_name + "/empty: a checkpoint cut off in its header");
  EXPECT_EQ(error_text<multinode::UsageError>([&] { ddp::read_checkpoint(folder / "none", {}); }),
            "cannot read " + folder_name + "/none: No such file or directory");
  EXPECT_EQ(error("."), "cannot read " + folder_name + "/.: it is not a regular file");
  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(error("pipe"), "cannot read " + folder_name + "/pipe: it is not a regular file");
  fs::create_symlink("none", folder / "link");
  EXPECT_EQ(error("link"), "cannot read " + folder_name + "/link: it is a link to nothing");
  const std::string no_sense = "a damaged checkpoint (its header makes no sense)",
                    places = "a damaged checkpoint (its blocks overlap, or have gaps between them)";
  for (
      const auto& [sizes, says] :
      {std::pair(R"("shape":[6],"data_offsets":[0,1e30])", no_sense),
       {R"("shape":[-6],"data_offsets":[0,24])", no_sense},
       {R"("shape":[6],"data_offsets":[8,0])", places},
       {R"("shape":[6],"data_offsets":[0,24]},"v":{"dtype":"F32","shape":[6],"data_offsets":[16,24])", places},
       {R"("shape":[6],"data_offsets":[0,18446744073709551615])",
        "a checkpoint cut off: 0 of 18446744073709551615 bytes behind its header"},
       {R"("shape":[0],"data_offsets":[0,0])", "it has no checksum: not written by this program"},
       {R"("shape":[1],"data_offsets":[0,99999999996]},"crc32":{"dtype":"U8","shape":[4],"data_offsets":[99999999996,100000000000])",
        "a checkpoint cut off: 0 of 100000000000 bytes behind its header"}}) {
    const std::string head = R"({"w":{"dtype":"F32",)" + std::string(sizes) + "}}";
    std::vector<std::uint8_t> file(8);
    file[0] = static_cast<std::uint8_t>(head.size());
    file.insert(file.end(), head.begin(), head.end());
    write_file(folder / "other", file);
    EXPECT_EQ(error("other"), folder_name + "/other: " + says);
  }
  fs::resize_file(folder / "empty", 100'000'000'000);  // more than the memory, and nothing on the disk
  EXPECT_EQ(error("empty"), folder_name + "/empty: not a checkpoint (it does not begin like a safetensors file)");
  fs::resize_file(folder / "other", fs::file_size(folder / "other") + 100'000'000'000);
  EXPECT_EQ(error("other"), folder_name + "/other: 100000000000 bytes, of other blocks than the model's");
}

TEST(Checkpoint, OfAnotherModelIsRefused) {
  const TemporaryFolder folder;
  Model model(1);
  ddp::write_checkpoint(folder / "a", {}, model.blocks());
  const auto error = [&](const std::vector<NamedBlock>& blocks) {
    const std::string says = error_text<std::runtime_error>([&] { ddp::read_checkpoint(folder / "a", blocks); });
    EXPECT_TRUE(says.starts_with((folder / "a: ").string())) << says;
    return says;
  };
  Model other(9, 5);
  EXPECT_SAYS(error(other.blocks()), "its 'weights' is 3 x 2 F32, the model's 5 x 2 F32");
  auto blocks = model.blocks();
  blocks[0].shape = {2, 3};
  EXPECT_SAYS(error(blocks), "its 'weights' is 3 x 2 F32, the model's 2 x 3 F32");
  std::vector<std::int32_t> integers(6);
  blocks[0] = {"weights", {3, 2}, std::span(integers)};
  EXPECT_SAYS(error(blocks), "its 'weights' is 3 x 2 F32, the model's 3 x 2 I32");
  blocks = model.blocks();
  blocks[1].name = "variance";
  EXPECT_SAYS(error(blocks), "it has no 'variance', which the model has");
  blocks = model.blocks();
  blocks.pop_back();
  EXPECT_SAYS(error(blocks), "it has 'nothing', which the model has not");
  EXPECT_EQ(model, Model(1)) << "blocks were touched";
  EXPECT_EQ(other, Model(9, 5)) << "blocks were touched";
}

TEST(Checkpoint, AFailedWriteLeavesTheOldOne) {
  const TemporaryFolder folder;
  Model small(1), large(2, 20'000), read(9);
  ddp::write_checkpoint(folder / "a", {}, small.blocks());
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{64 << 10, RLIM_INFINITY}, none{RLIM_INFINITY, RLIM_INFINITY};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_EQ(error_text<std::runtime_error>([&] { ddp::write_checkpoint(folder / "a", {}, large.blocks()); }),
            "cannot write the checkpoint " + folder.path().string() + "/a: File too large");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &none), 0);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a"});
  ddp::read_checkpoint(folder / "a", read.blocks());
  EXPECT_EQ(read, small);
}

TEST(Checkpoint, WhereNothingCanBeWrittenItSaysSo) {
  const TemporaryFolder folder;
  Model model(1);
  const std::string none = folder / "none/a";
  EXPECT_EQ(error_text<std::runtime_error>([&] { ddp::write_checkpoint(none, {}, model.blocks()); }),
            "cannot write the checkpoint " + none + ": No such file or directory");
  const std::string in_none = folder / "none/deep";
  EXPECT_EQ(error_text<multinode::UsageError>([&] { ddp::CheckpointFolder folder(in_none); }),
            "no checkpoints can be written to " + in_none + ": No such file or directory");
  write_file(folder / "file", {});
  const std::string below = folder / "file";
  EXPECT_EQ(error_text<multinode::UsageError>([&] { ddp::CheckpointFolder folder(below); }),
            "no checkpoints can be written to " + below + ": Not a directory");
}

TEST(CheckpointFolder, KeepsTheNewestAndLeavesOthersAlone) {
  const TemporaryFolder parent;
  const fs::path path = parent / "checkpoints";
  fs::create_directory(path);
  const std::vector<std::string> foreign = {
      "README", "lock", "notes.tmp", "step-0000000001.checkpoint.bak", "step-7.checkpoint", "step-x.checkpoint.tmp"};
  for (const auto& name : foreign) write_file(path / name, {});
  write_file(path / "step-0000000003.checkpoint.tmp", {1, 2});  // a killed writer's
  ddp::CheckpointFolder folder(path);
  EXPECT_EQ(names_in(path), foreign);
  EXPECT_TRUE(folder.newest_first().empty());
  Model model(1);
  for (const std::uint64_t step : {9ul, 10ul, 11'000'000'000ul, 12'000'000'000ul}) {
    folder.start_write(step, {{"step", step}}, model.blocks());
    folder.wait();
    EXPECT_EQ(ddp::read_checkpoint(folder.newest_first().front(), model.blocks()).at("step"), step);
  }
  auto left = foreign;
  left.insert(left.end(), {"step-11000000000.checkpoint", "step-12000000000.checkpoint"});
  std::sort(left.begin(), left.end());
  EXPECT_EQ(names_in(path), left);
  folder.start_write(11, {}, model.blocks());  // a training that did not resume
  EXPECT_EQ(error_text<std::logic_error>([&] { folder.wait(); }),
            "CheckpointFolder::start_write() of step 11 after " + path.string() + "/step-12000000000.checkpoint");
}

TEST(CheckpointFolder, OneRunWritesAndAnotherNamesIt) {
  const TemporaryFolder parent;
  const std::string path = parent.path(), temporary = "step-0000000001.checkpoint.tmp";
  ASSERT_EQ(chmod(path.c_str(), 0770), 0);
  std::optional<ddp::CheckpointFolder> first(path);
  write_file(parent / temporary, {});
  const auto expect_refused = [&] {
    EXPECT_EQ(error_text<multinode::UsageError>([&] { ddp::CheckpointFolder second(path); }),
              "no checkpoints can be written to " + path + ": the run on host " + multinode::host_name() + ", pid " +
                  std::to_string(getpid()) + " writes there; wait until it ends, or name another folder (if that " +
                  "host is gone, remove " + path + "/lock)");
    EXPECT_EQ(names_in(path), (std::vector<std::string>{"lock", temporary}));
  };
  const auto become = [](uid_t user) { return getuid() != 0 || seteuid(user) == 0; };
  expect_refused();
  EXPECT_EQ(fs::status(path + "/lock").permissions(), fs::perms(0660));
  ASSERT_TRUE(become(65534));  // a colleague of the same group
  expect_refused();
  ASSERT_TRUE(become(0));
  first.reset();
  ASSERT_TRUE(become(65534));
  EXPECT_NO_THROW(ddp::CheckpointFolder second(path));
  ASSERT_TRUE(become(0));
  ASSERT_EQ(chmod(path.c_str(), 0755), 0);
  const ddp::CheckpointFolder own(path);
  EXPECT_EQ(fs::status(path + "/lock").permissions(), fs::perms(0600));
  std::ofstream(path + "/lock") << "\33]0;a title\7 of a stranger";
  EXPECT_SAYS(error_text<multinode::UsageError>([&] { ddp::CheckpointFolder second(path); }),
              "the run on ?]0;a title? of a stranger writes there");
  EXPECT_EQ(names_in(path), std::vector<std::string>{"lock"});
}

TEST(CheckpointFolder, ALinkIsNeitherLockedNorWritten) {
  const TemporaryFolder folder;
  folder.write("precious", "keep me");
  const auto link = [&](const std::string& name) { fs::create_hard_link(folder / "precious", folder / name); };
  link("lock");
  EXPECT_SAYS(error_text<multinode::UsageError>([&] { ddp::CheckpointFolder refused(folder.path()); }),
              "lock is not a regular file of one name");
  fs::remove(folder / "lock");
  Model model(1);
  link("a.tmp");
  ddp::write_checkpoint(folder / "a", {}, model.blocks());
  EXPECT_EQ(multinode::testing::text_of(folder / "precious"), "keep me\n");
}

TEST(CheckpointFolder, AFolderOfAllUsersIsRefused) {
  const TemporaryFolder parent;
  for (const mode_t mode : {01777, 0777, 0702}) {
    ASSERT_EQ(chmod(parent.path().c_str(), mode), 0);
    EXPECT_EQ(error_text<multinode::UsageError>([&] { ddp::CheckpointFolder folder(parent.path()); }),
              "no checkpoints can be written to " + parent.path().string() +
                  ": every user can write to this folder; name a folder in it");
  }
  for (const mode_t mode : {01700, 03770, 0755}) {
    ASSERT_EQ(chmod(parent.path().c_str(), mode), 0);
    EXPECT_NO_THROW(ddp::CheckpointFolder folder(parent.path())) << std::oct << mode;
  }
}

TEST(CheckpointFolder, WritesInTheBackgroundWhatTheBlocksWere) {
  const TemporaryFolder parent;
  ddp::CheckpointFolder folder(parent.path());
  Model model(1, 500'000), read(9, 500'000);
  const Model then = model;
  folder.start_write(1, {{"step", 1}}, model.blocks());
  model.weights.assign(model.weights.size(), 0);
  folder.wait();
  ddp::read_checkpoint(folder.newest_first().at(0), read.blocks());
  EXPECT_EQ(read, then);

  fs::remove_all(parent.path());
  folder.start_write(2, {}, model.blocks());
  EXPECT_SAYS(error_text<std::runtime_error>([&] { folder.wait(); }),
              "/step-0000000002.checkpoint: No such file or directory");
  folder.wait();  // said once
}

}  // namespace checkpoint_test
