// SPDX-License-Identifier: Apache-2.0
#include "checkpoint.hpp"

#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/files.hpp>
#include <multinode/base/json.hpp>
#include <multinode/base/text.hpp>
#include <multinode/net/address.hpp>

#include <fmt/core.h>

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <functional>
#include <iostream>
#include <limits>
#include <map>
#include <numeric>
#include <stdexcept>
#include <system_error>

namespace ddp {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "elements are written as they are in memory");

constexpr const char* temporary = ".tmp";       // at the end of a file that is being written
constexpr const char* checksum_name = "crc32";  // the last tensor
constexpr const char* metadata_name = "__metadata__";
constexpr std::uint64_t longest_head = 1 << 20;      // bytes; read_checkpoint() parses it before it knows the file
constexpr std::uint64_t longest_other = 4ull << 30;  // bytes, of a checkpoint whose blocks are not the model's

using Checksum = std::uint32_t;

// As safetensors calls them.
std::string type_name(multinode::DataType type) {
  constexpr std::array names{"F32", "F64", "F16", "BF16", "I8", "U8", "I32", "U32", "I64", "U64"};
  static_assert(names.size() == multinode::data_types.size());
  return names.at(static_cast<std::size_t>(type));
}

std::string text_of(const std::vector<std::size_t>& shape, const std::string& type) {
  return multinode::join(shape, " x ") + " " + type;
}

Checksum add_to(Checksum sum, const void* data, std::size_t bytes) {
  if (bytes == 0) return sum;  // for a null pointer zlib starts anew
  return static_cast<Checksum>(crc32_z(sum, static_cast<const Bytef*>(data), bytes));
}

fs::path folder_of(const fs::path& path) { return path.has_parent_path() ? path.parent_path() : "."; }

constexpr std::string_view before_step = "step-", after_step = ".checkpoint";

// The step that a file is named for.
std::optional<std::uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(before_step) || !name.ends_with(after_step)) return std::nullopt;
  name.remove_prefix(before_step.size());
  name.remove_suffix(std::min(name.size(), after_step.size()));
  return multinode::number_of<std::uint64_t>(name);
}
std::string name_of(std::uint64_t step) {
  return fmt::format("{}{:010}{}", before_step, step, after_step);  // zeros, so that ls shows them in order
}

// A file that is removed with the object, unless it was renamed to what it is meant to be.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& path) : path_(path), name_(path.string() + temporary) {
    try {
      fd_ = multinode::create_new(name_);  // in place of a killed run's, or of another user's link
    } catch (const std::system_error& error) {
      fail(error.code().value());
    }
  }
  ~TemporaryFile() {
    if (fd_) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const void* data, std::size_t bytes) try {
    sum_ = add_to(sum_, data, bytes);
    multinode::write_all(fd_.get(), {static_cast<const char*>(data), bytes}, path_);
  } catch (const std::system_error& error) {
    fail(error.code().value());
  }
  Checksum sum() const { return sum_; }

  void rename() {
    if (::fsync(fd_.get()) < 0 || ::rename(name_.c_str(), path_.c_str()) < 0) fail();
    fd_.reset();
    // The new name is on the disk when the folder is. Some file systems cannot do that: the checkpoint is there all the
    // same.
    const multinode::Descriptor folder_fd(::open(folder_of(path_).c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder_fd) ::fsync(folder_fd.get());
  }

 private:
  [[noreturn]] void fail(int error = errno) const {
    throw std::runtime_error("cannot write the checkpoint " + path_.string() + ": " + std::strerror(error));
  }
  fs::path path_;
  std::string name_;
  multinode::Descriptor fd_;
  Checksum sum_ = 0;
};

void require_agreement(const std::vector<std::size_t>& shape, std::size_t count, const std::string& name) {
  if (std::accumulate(shape.begin(), shape.end(), std::size_t{1}, std::multiplies<>()) != count)
    throw std::logic_error("checkpoint: '" + name + "' has a shape of another number of elements");
}

}  // namespace

std::string crc32_of(std::initializer_list<std::span<const std::uint8_t>> parts) {
  Checksum sum = 0;
  for (const auto& part : parts) sum = add_to(sum, part.data(), part.size());
  return fmt::format("{:08x}", sum);
}

void write_checkpoint(const fs::path& path, const nlohmann::json& state, std::span<const NamedBlock> blocks) {
  nlohmann::json head{{metadata_name, {{"state", multinode::json_text(state)}}}};
  std::size_t end = 0;
  const auto add = [&](const std::string& name, const std::vector<std::size_t>& shape, const std::string& type,
                       std::size_t bytes) {
    if (head.contains(name)) throw std::logic_error("checkpoint: two blocks are named '" + name + "'");
    head[name] = {{"dtype", type}, {"shape", shape}, {"data_offsets", {end, end + bytes}}};
    end += bytes;
  };
  for (const NamedBlock& b : blocks) {
    require_agreement(b.shape, b.block.count, b.name);
    add(b.name, b.shape, type_name(b.block.type), b.block.bytes());
  }
  add(checksum_name, {sizeof(Checksum)}, type_name(multinode::DataType::uint8), sizeof(Checksum));
  std::string text = multinode::json_text(head);
  text.resize((text.size() + 7) / 8 * 8, ' ');  // so that the elements are aligned
  const std::uint64_t head_bytes = text.size();
  if (head_bytes > longest_head) throw std::logic_error("checkpoint: the state or the names are longer than 1 MiB");

  TemporaryFile file(path);
  file.write(&head_bytes, sizeof head_bytes);
  file.write(text.data(), text.size());
  for (const NamedBlock& b : blocks) file.write(b.block.data, b.block.bytes());
  const Checksum sum = file.sum();
  file.write(&sum, sizeof sum);
  file.rename();
}

namespace {

struct Source {  // of a block in the file
  std::vector<std::size_t> shape;
  std::string type;
  std::size_t begin = 0, end = 0;
};

// In what the file differs from the model; "": in nothing.
std::string difference(std::span<const NamedBlock> blocks, const std::map<std::string, Source>& sources) {
  for (const NamedBlock& b : blocks) {
    require_agreement(b.shape, b.block.count, b.name);
    const auto source = sources.find(b.name);
    if (source == sources.end()) return "it has no '" + b.name + "', which the model has";
    const std::string here = text_of(b.shape, type_name(b.block.type));
    const std::string there = text_of(source->second.shape, source->second.type);
    if (here != there) return "its '" + b.name + "' is " + multinode::printable(there) + ", the model's " + here;
    if (source->second.end - source->second.begin != b.block.bytes()) return "its '" + b.name + "' has other bytes";
  }
  for (const auto& source : sources)
    if (std::ranges::find(blocks, source.first, &NamedBlock::name) == blocks.end())
      return "it has '" + multinode::printable(source.first) + "', which the model has not";
  return "";
}

}  // namespace

nlohmann::json read_checkpoint(const fs::path& path, std::span<const NamedBlock> blocks,
                               const nlohmann::json& options) try {
  const std::string name = path.string();
  multinode::ForeignFile file(path, std::numeric_limits<std::int64_t>::max(), multinode::Links::followed);
  const auto damaged = [&name](const std::string& why) { throw DamagedCheckpoint(name + ": " + why); };
  Checksum sum = 0;
  const auto take = [&](void* to, std::size_t bytes, const char* where) {
    if (file.read(to, bytes) != bytes) damaged(std::string("a checkpoint cut off ") + where);
    sum = add_to(sum, to, bytes);
  };

  std::uint64_t head_bytes = 0;
  take(&head_bytes, sizeof head_bytes, "in its header");
  const std::string head_text = file.first(std::min(head_bytes, longest_head));
  if (head_bytes > longest_head || (file.size() > sizeof head_bytes && !head_text.starts_with('{')))
    damaged("not a checkpoint (it does not begin like a safetensors file)");
  if (head_text.size() < head_bytes || file.size() < sizeof head_bytes + head_bytes)
    damaged("a checkpoint cut off in its header");
  sum = add_to(sum, head_text.data(), head_bytes);

  std::map<std::string, Source> sources;
  nlohmann::json state;
  std::size_t end = 0, bytes = 0;  // of the blocks
  try {
    const nlohmann::json head = multinode::parse_json(head_text);
    for (const auto& [tensor, entry] : head.items()) {
      if (tensor == metadata_name) {
        state = multinode::parse_json(entry.at("state").get_ref<const std::string&>());
        continue;
      }
      using Size = nlohmann::json::number_unsigned_t;  // get_ref() refuses 1e30, which get() converts to anything
      const auto& offsets = entry.at("data_offsets");
      Source& source = sources[tensor] = {
          {}, entry.at("dtype"), offsets.at(0).get_ref<const Size&>(), offsets.at(1).get_ref<const Size&>()};
      for (const auto& extent : entry.at("shape")) source.shape.push_back(extent.get_ref<const Size&>());
      end = std::max(end, source.end);
      bytes += source.end - source.begin;
    }
  } catch (const nlohmann::json::exception&) {
    damaged("a damaged checkpoint (its header makes no sense)");
  }
  if (bytes != end) damaged("a damaged checkpoint (its blocks overlap, or have gaps between them)");
  const std::uint64_t elements_bytes = file.size() - sizeof head_bytes - head_bytes;
  if (elements_bytes < end)
    damaged(fmt::format("a checkpoint cut off: {} of {} bytes behind its header", elements_bytes, end));
  if (elements_bytes > end) damaged(fmt::format("{} bytes behind the checkpoint", elements_bytes - end));
  const auto checksum = sources.extract(checksum_name);
  if (!checksum || checksum.mapped().end != end || end - checksum.mapped().begin != sizeof sum)
    damaged("it has no checksum: not written by this program");

  const std::string other = difference(blocks, sources);  // before there is memory for what the header announces
  if (!other.empty() && end > longest_other) damaged(fmt::format("{} bytes, of other blocks than the model's", end));

  constexpr std::size_t piece = 1 << 20;
  end -= sizeof sum;
  std::vector<std::uint8_t> elements(other.empty() ? end : std::min(end, piece));
  for (std::size_t at = 0; at < end; at += piece)
    take(elements.data() + (other.empty() ? at : 0), std::min(piece, end - at), "while it was read");
  Checksum right = 0;
  if (file.read(&right, sizeof right) != sizeof right || right != sum)
    damaged("a damaged checkpoint (its checksum is wrong)");

  for (const auto& [option, value] : options.items()) {
    const std::string saved = multinode::json_text(state.is_object() ? state.value(option, nlohmann::json())
                                                                     : nlohmann::json()),
                      given = multinode::json_text(value);  // as it would be saved
    if (saved != given)
      throw multinode::UsageError(name + ": a training with " + option + " " + multinode::printable(saved) + ", not " +
                                  given + "; resume with the same, or write checkpoints to another folder");
  }
  if (!other.empty()) throw std::runtime_error(name + ": " + other);
  for (const NamedBlock& b : blocks)
    if (b.block.count > 0) std::memcpy(b.block.data, elements.data() + sources.at(b.name).begin, b.block.bytes());
  return state;
} catch (const multinode::UnfitFile& error) {
  throw DamagedCheckpoint(error.what());
}

Restored load_checkpoint(multinode::World& world, const std::vector<fs::path>& newest_first,
                         std::span<const NamedBlock> blocks, const nlohmann::json& options) {
  const std::string newest = newest_first.empty() ? "" : newest_first[0].string();
  const auto step_in = [](const fs::path& path) { return step_of(path.filename().string()).value_or(0); };
  const std::vector<std::string> all = world.gather_on_rank_0("newest checkpoint", newest);
  for (std::size_t rank = 0; rank < all.size(); ++rank)
    if (step_in(all[rank]) > step_in(newest))
      throw multinode::UsageError(fmt::format(
          "rank {} (host {}) has the newer checkpoint {}, rank 0 (host {}) {}: copy it to there, or remove it", rank,
          world.host(static_cast<int>(rank)), all[rank], world.host(0), newest.empty() ? "none" : newest));
  nlohmann::json found;
  std::vector<std::string> damaged;
  for (std::size_t i = 0; world.rank() == 0 && found.is_null() && i < newest_first.size(); ++i) try {
      const fs::path& path = newest_first[i];
      found = {{"state", read_checkpoint(path, blocks, options)}, {"path", path.string()}};
    } catch (const DamagedCheckpoint& error) {
      damaged.emplace_back(error.what());
    }
  if (found.is_null() && !damaged.empty())
    throw multinode::UsageError("no checkpoint is whole: " + multinode::join(damaged, "; ") +
                                "; remove these to start anew, or name another folder");
  for (std::size_t i = 0; i < damaged.size(); ++i) {
    const fs::path aside = newest_first[i].string() + ".damaged";
    std::error_code failed;  // then it is looked at again at the next start
    fs::rename(newest_first[i], aside, failed);
    std::cerr << world.program() + ": warning: " + damaged[i] + "; it is renamed to " + aside.filename().string() +
                     ", and the checkpoint before it is used\n";
  }
  found = multinode::from_msgpack(world.broadcast("load_checkpoint", multinode::to_msgpack(found)));
  if (found.is_null()) return {};
  return {found.at("state"), found.at("path").get<std::string>()};
}

namespace {

[[noreturn]] void refuse_to_write(const fs::path& path, const std::string& why) {
  throw multinode::UsageError("no checkpoints can be written to " + path.string() + ": " + why);
}

}  // namespace

CheckpointLock::CheckpointLock(const fs::path& checkpoints, const fs::path& file) {
  const auto refuse = [&] { refuse_to_write(checkpoints, file.filename().string() + ": " + std::strerror(errno)); };
  struct stat of_folder {};
  struct stat of_file {};
  if (::stat(folder_of(file).c_str(), &of_folder) != 0) refuse();
  if ((of_folder.st_mode & S_IWOTH) != 0)
    refuse_to_write(checkpoints, "every user can write to this folder; name a folder in it");
  fd_ = multinode::Descriptor(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!fd_ || ::fstat(fd_.get(), &of_file) != 0) refuse();
  if (!S_ISREG(of_file.st_mode) || of_file.st_nlink != 1)
    refuse_to_write(checkpoints, file.filename().string() + " is not a regular file of one name");
  if (::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) {
      std::string holder(200, '\0');
      holder.resize(std::size_t(std::max<ssize_t>(0, ::pread(fd_.get(), holder.data(), holder.size(), 0))));
      holder.resize(std::min(holder.size(), holder.find('\n')));
      refuse_to_write(checkpoints,
                      fmt::format("the run on {} writes there; wait until it ends, or name another folder "
                                  "(if that host is gone, remove {})",
                                  holder.empty() ? "another host" : multinode::one_line(holder), file.string()));
    }
    if (errno != ENOLCK && errno != ENOTSUP && errno != ENOSYS) refuse();  // else this file system has no locks
  }
  // For the next run: also a colleague's, if the folder is the group's. Nobody else can lock it, or write to it.
  const bool shared = (of_folder.st_mode & S_IWGRP) != 0 && ::fchown(fd_.get(), uid_t(-1), of_folder.st_gid) == 0;
  ::fchmod(fd_.get(), shared ? 0660 : 0600);
  if (::ftruncate(fd_.get(), 0) == 0)
    ::dprintf(fd_.get(), "host %s, pid %d\n", multinode::host_name().c_str(), ::getpid());
}

CheckpointFolder::CheckpointFolder(fs::path folder, multinode::Watchdog* watchdog)
    : folder_(std::move(folder)), watchdog_(watchdog) {
  std::error_code error;
  if (::mkdir(folder_.c_str(), multinode::folder_mode) != 0 && !fs::is_directory(folder_))
    error = {errno, std::generic_category()};
  if (error == std::errc::file_exists) error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(folder_.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (error) refuse_to_write(folder_, error.message());
  lock_.emplace(folder_, folder_ / "lock");
  for (const auto& entry : fs::directory_iterator(folder_, error)) {
    const std::string name = entry.path().filename().string();
    if (name.ends_with(temporary) && step_of(name.substr(0, name.size() - std::strlen(temporary)))) {
      fs::remove(entry.path(), error);
      if (error) break;
    }
  }
  if (error) refuse_to_write(folder_, error.message());
}

CheckpointFolder::~CheckpointFolder() {
  try {
    wait();
  } catch (const std::exception&) {  // the next start finds the checkpoint before
  }
}

fs::path CheckpointFolder::path_of(std::uint64_t step) const { return folder_ / name_of(step); }

std::vector<fs::path> CheckpointFolder::newest_first(const fs::path& folder) {
  std::map<std::uint64_t, fs::path, std::greater<>> found;
  for (const std::string& name : multinode::names_in(folder))
    if (const auto step = step_of(name); step && name == name_of(*step)) found[*step] = folder / name;
  std::vector<fs::path> paths;
  for (const auto& [step, path] : found) paths.push_back(path);
  return paths;
}

void CheckpointFolder::start_write(std::uint64_t step, nlohmann::json state, std::span<const NamedBlock> blocks) {
  wait();
  copies_.resize(blocks.size());
  std::vector<NamedBlock> copied(blocks.begin(), blocks.end());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    const auto* data = static_cast<const std::byte*>(blocks[i].block.data);
    copies_[i].assign(data, data + blocks[i].block.bytes());
    copied[i].block.data = copies_[i].data();
  }
  writing_ = std::async(std::launch::async, [this, step, state = std::move(state), copied = std::move(copied)] {
    write_checkpoint(path_of(step), state, copied);
    const std::vector<fs::path> all = newest_first();
    if (all.at(0) != path_of(step))
      throw std::logic_error(fmt::format("CheckpointFolder::start_write() of step {} after {}", step, all[0].string()));
    for (std::size_t i = 2; i < all.size(); ++i) fs::remove(all[i]);
  });
}

void CheckpointFolder::wait() {
  if (!writing_.valid()) return;
  std::optional<multinode::Watchdog::Operation> inside;
  if (watchdog_) inside.emplace(*watchdog_, "writing a checkpoint", multinode::nobody);
  writing_.get();
}

}  // namespace ddp
