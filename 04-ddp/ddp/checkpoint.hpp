// checkpoint.hpp: the state of a training in a file, so that it can stop, or be stopped, and resume.
//
// The file has the safetensors layout, so that Python opens it: safetensors.torch.load_file(path). All numbers are
// little-endian:
//   bytes of the header: 8 bytes
//   header: JSON {"NAME": {"dtype": "F32", "shape", "data_offsets": [begin, end] from the header's end} ...,
//   "__metadata__": {"state": the caller's, as a string}}
//   the blocks' elements
//   "crc32", the last tensor, 4 bytes: CRC-32 of everything before
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "parameters.hpp"

#include <multinode/base/descriptor.hpp>
#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <future>
#include <initializer_list>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace ddp {

// Writes `path` + ".tmp", has it put on the disk, and renames it: whatever ends the process, or the power, `path` is
// either what it was before or the whole new checkpoint. One process at a time writes to a path. The blocks are host
// memory. Throws std::runtime_error that names the path and the reason; no temporary file is then left.
void write_checkpoint(const std::filesystem::path& path, const nlohmann::json& state,
                      std::span<const NamedBlock> blocks);

// CRC-32 of the parts, one after the other, in 8 hexadecimal digits: so a checkpoint knows its data set.
std::string crc32_of(std::initializer_list<std::span<const std::uint8_t>> parts);

// A file that is cut off, has a wrong checksum or is no checkpoint; a folder, a pipe, or a link to nothing.
struct DamagedCheckpoint : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Fills the blocks (host memory) and returns the state. Each member of `options`, such as {"--seed", 1}, is an option
// that a training cannot change on its way: it has to be in the state, with the same value. Throws
// multinode::UsageError for a file that cannot be read and for other options, DamagedCheckpoint, and std::runtime_error
// for one that has not the same names, shapes and types as `blocks`. All name the file and what is wrong, and leave the
// blocks as they are. Allocates 1 MiB, a multiple of the header, and as many bytes as the blocks have.
nlohmann::json read_checkpoint(const std::filesystem::path& path, std::span<const NamedBlock> blocks,
                               const nlohmann::json& options = nlohmann::json::object());

struct Restored {
  nlohmann::json state;        // null: there was no checkpoint
  std::filesystem::path path;  // rank 0's name of it; empty: none
};

// Called by all ranks: rank 0 reads the first of its `newest_first` that is not damaged, and all ranks get its state,
// so no file system has to be shared. Rank 0 alone has the blocks then: broadcast_parameters() gives them to the
// others. A damaged file is renamed, with a warning on standard error. Throws on rank 0 what read_checkpoint() throws
// for the one that it takes, and multinode::UsageError if all are damaged, which then keep their names, or if another
// rank's list begins with a later step: rank 0 was on that rank's node. The World then ends the others, with that line.
Restored load_checkpoint(multinode::World& world, const std::vector<std::filesystem::path>& newest_first,
                         std::span<const NamedBlock> blocks, const nlohmann::json& options = nlohmann::json::object());

// Held by the one process that writes these checkpoints. The file names the process, and stays. Throws
// multinode::UsageError that names the process that holds it, and for a folder in which every user may write, such as
// /tmp. Without locks in the file system it does nothing.
class CheckpointLock {
 public:
  CheckpointLock(const std::filesystem::path& checkpoints, const std::filesystem::path& file);

 private:
  multinode::Descriptor fd_;
};

// The newest checkpoints of one training, in files named by step. Files of other names are left alone. Made by the one
// rank that writes.
class CheckpointFolder {
 public:
  // Makes the folder if need be, locks it, and removes temporary files that a killed writer left. The watchdog, if
  // given, limits how long a disk is waited for. Throws multinode::UsageError that names the folder where nothing can
  // be written.
  explicit CheckpointFolder(std::filesystem::path folder, multinode::Watchdog* watchdog = nullptr);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Copies the blocks. A second thread writes the copies and then removes all but the two of the highest steps:
  // until then there must be room for one more. wait() returns when that is done, and throws what write_checkpoint()
  // threw, and std::logic_error if there is one of a higher step, from which a training would resume. The next writing,
  // and the destructor, wait first.
  void start_write(std::uint64_t step, nlohmann::json state, std::span<const NamedBlock> blocks);
  void wait();

  std::vector<std::filesystem::path> newest_first() const { return newest_first(folder_); }
  // On any rank; empty: there are none, or no such folder.
  static std::vector<std::filesystem::path> newest_first(const std::filesystem::path& folder);

 private:
  std::filesystem::path path_of(std::uint64_t step) const;

  std::filesystem::path folder_;
  multinode::Watchdog* watchdog_;
  std::optional<CheckpointLock> lock_;
  std::vector<std::vector<std::byte>> copies_;  // what the thread writes
  std::future<void> writing_;
};

}  // namespace ddp
