// checkpoint.hpp: the state of a training in a file, so that it can stop, or be stopped, and go on.
//
// The file, all numbers little-endian:
//   magic "mnckpt\r\n"; format version, bytes of the file, bytes of the head: 8 bytes each
//   head: JSON {"state": the caller's, "blocks": [{"name", "shape", "type", "offset": from the head's end}]}
//   the blocks' elements
//   CRC-32 of everything before: 4 bytes
#pragma once

#include "parameters.hpp"

#include <multinode/world.hpp>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ddp {

// Writes `path` + ".tmp", has it put on the disk, and renames it: whatever ends the process, or the power, `path` is
// either what it was before or the whole new checkpoint. One process at a time writes to a path. The blocks are host
// memory. Throws std::runtime_error that names the path and the reason; no temporary file is then left.
void write_checkpoint(const std::filesystem::path& path, const nlohmann::json& state,
                      std::span<const NamedBlock> blocks);

// Fills the blocks (host memory) and returns the state. Each member of `options`, such as {"--seed", 1}, is an option
// that a training cannot change on its way: it has to be in the state, with the same value. Throws
// multinode::UsageError for a file that cannot be read and for other options, and std::runtime_error for a file that is
// no checkpoint, is cut off or damaged, has a newer format, or has not the same names, shapes and types as `blocks`.
// All name the file and what is wrong, and leave the blocks as they are.
nlohmann::json read_checkpoint(const std::filesystem::path& path, std::span<const NamedBlock> blocks,
                               const nlohmann::json& options = nlohmann::json::object());

// The same from memory; `name` stands for the file in messages. Allocates no more than a multiple of the head.
nlohmann::json parse_checkpoint(std::span<const std::uint8_t> file, const std::string& name,
                                std::span<const NamedBlock> blocks,
                                const nlohmann::json& options = nlohmann::json::object());

// Called by all ranks: rank 0 reads `path`, the others' path is not looked at, and all get the same state and blocks,
// so no file system has to be shared. An empty path on rank 0 reads nothing and gives null. Throws on rank 0 what
// read_checkpoint() throws; the World then ends the others, with the same line.
nlohmann::json load_checkpoint(multinode::World& world, multinode::Communicator& communicator,
                               const std::filesystem::path& path, std::span<const NamedBlock> blocks,
                               const nlohmann::json& options = nlohmann::json::object());

// The newest checkpoints of one training, in files named by step. Files of other names are left alone. Made by the one
// rank that writes.
class CheckpointFolder {
 public:
  // Makes the folder if need be, and removes temporary files that a killed writer left. The watchdog, if given, limits
  // how long a disk is waited for. Throws multinode::UsageError that names the folder where nothing can be written.
  CheckpointFolder(std::filesystem::path folder, std::size_t keep, multinode::Watchdog* watchdog = nullptr);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  // Removes all but the `keep` of the highest steps afterwards: a training that writes here goes on from newest().
  // Until then there must be room for one more. Returns the new one's path. Throws what write_checkpoint() throws.
  std::filesystem::path write(std::uint64_t step, const nlohmann::json& state, std::span<const NamedBlock> blocks);

  // Copies the blocks, and has a thread of its own write() them: nobody waits for the disk. wait() returns when that is
  // done, and throws what write() threw. The next writing, and the destructor, wait first.
  void start_write(std::uint64_t step, nlohmann::json state, std::span<const NamedBlock> blocks);
  void wait();

  // The newest that is whole by now, once: nothing where none was finished since the last call. Throws what write()
  // threw.
  std::optional<std::filesystem::path> take_written();

  std::optional<std::filesystem::path> newest() const;

 private:
  std::filesystem::path path_of(std::uint64_t step) const;
  std::vector<std::uint64_t> steps() const;  // newest first

  std::filesystem::path folder_;
  std::size_t keep_;
  multinode::Watchdog* watchdog_;
  std::vector<std::vector<std::byte>> copies_;  // what the thread writes
  std::future<std::filesystem::path> writing_;
  std::optional<std::filesystem::path> written_;
};

}  // namespace ddp
