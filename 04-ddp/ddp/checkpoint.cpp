#include "checkpoint.hpp"

#include <multinode/check.hpp>
#include <multinode/descriptor.hpp>
#include <multinode/text.hpp>

#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <set>
#include <stdexcept>
#include <system_error>

namespace ddp {

namespace fs = std::filesystem;

namespace {

static_assert(std::endian::native == std::endian::little, "elements are written as they are in memory");

constexpr std::array<char, 8> magic{'m', 'n', 'c', 'k', 'p', 't', '\r', '\n'};
constexpr std::uint64_t format_version = 1;
constexpr const char* temporary = ".tmp";  // at the end of a file that is being written

struct Header {
  std::array<char, 8> magic;
  std::uint64_t version, file_bytes, head_bytes;
};
using Checksum = std::uint32_t;

std::string text_of(const std::vector<std::size_t>& shape, std::string_view type) {
  return multinode::join(shape, " x ") + " " + std::string(type);
}

Checksum add_to(Checksum sum, const void* data, std::size_t bytes) {
  if (bytes == 0) return sum;  // for a null pointer zlib starts anew
  return static_cast<Checksum>(crc32_z(sum, static_cast<const Bytef*>(data), bytes));
}

// A file that is removed with the object, unless it was renamed to what it is meant to be.
class TemporaryFile {
 public:
  explicit TemporaryFile(const fs::path& path)
      : path_(path),
        name_(path.string() + temporary),
        fd_(::open(name_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666)) {
    if (!fd_) fail();
  }
  ~TemporaryFile() {
    if (fd_) ::unlink(name_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    sum_ = add_to(sum_, data, bytes);
    for (const char* at = static_cast<const char*>(data); bytes > 0;) {
      const ssize_t done = ::write(fd_.get(), at, bytes);
      if (done < 0 && errno != EINTR) fail();
      if (done < 0) continue;
      at += done;
      bytes -= static_cast<std::size_t>(done);
    }
  }
  Checksum sum() const { return sum_; }

  void rename() {
    if (::fsync(fd_.get()) < 0 || ::rename(name_.c_str(), path_.c_str()) < 0) fail();
    fd_.reset();
    // The new name is in the folder; it is on the disk when the folder is.
    const fs::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
    const multinode::Descriptor folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder_fd || ::fsync(folder_fd.get()) < 0) fail();
  }

 private:
  [[noreturn]] void fail() const {
    throw std::runtime_error("cannot write the checkpoint " + path_.string() + ": " + std::strerror(errno));
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

void write_checkpoint(const fs::path& path, const nlohmann::json& state, std::span<const NamedBlock> blocks) {
  nlohmann::json list = nlohmann::json::array();
  std::set<std::string> names;
  std::size_t offset = 0;
  for (const NamedBlock& b : blocks) {
    require_agreement(b.shape, b.block.count, b.name);
    if (!names.insert(b.name).second) throw std::logic_error("checkpoint: two blocks are named '" + b.name + "'");
    list.push_back({{"name", b.name}, {"shape", b.shape}, {"type", name_of(b.block.type)}, {"offset", offset}});
    offset += b.block.bytes();
  }
  const std::string head = nlohmann::json{{"state", state}, {"blocks", list}}.dump();
  const Header header{magic, format_version, sizeof(Header) + head.size() + offset + sizeof(Checksum), head.size()};

  TemporaryFile file(path);
  file.write(&header, sizeof header);
  file.write(head.data(), head.size());
  for (const NamedBlock& b : blocks) file.write(b.block.data, b.block.bytes());
  const Checksum sum = file.sum();
  file.write(&sum, sizeof sum);
  file.rename();
}

nlohmann::json parse_checkpoint(std::span<const std::uint8_t> file, const std::string& name,
                                std::span<const NamedBlock> blocks, const nlohmann::json& options) {
  const auto refuse = [&name](const std::string& why) { throw std::runtime_error(name + ": " + why); };
  const auto bytes_text = [](std::uint64_t bytes) { return std::to_string(bytes) + " bytes"; };

  if (!file.empty() && std::memcmp(file.data(), magic.data(), std::min(magic.size(), file.size())) != 0)
    refuse("not a checkpoint (it begins with other bytes)");
  Header header{};
  if (file.size() < sizeof header) refuse("a checkpoint cut off in its header");
  std::memcpy(&header, file.data(), sizeof header);
  if (header.version > format_version)
    refuse("a checkpoint of format " + std::to_string(header.version) +
           ", written by a newer version of this program;" + " this one reads up to " + std::to_string(format_version));
  if (file.size() < header.file_bytes)
    refuse("a checkpoint cut off: " + std::to_string(file.size()) + " of " + bytes_text(header.file_bytes));
  if (file.size() > header.file_bytes) refuse(bytes_text(file.size() - header.file_bytes) + " behind the checkpoint");
  const char* damaged = "a damaged checkpoint (its checksum is wrong)";
  if (header.version == 0 || file.size() < sizeof header + sizeof(Checksum) ||
      header.head_bytes > file.size() - sizeof header - sizeof(Checksum))
    refuse(damaged);
  Checksum sum = 0;
  std::memcpy(&sum, file.data() + file.size() - sizeof sum, sizeof sum);
  if (add_to(0, file.data(), file.size() - sizeof sum) != sum) refuse(damaged);

  struct Source {
    std::vector<std::size_t> shape;
    std::string type;
    std::size_t offset;
  };
  std::map<std::string, Source> sources;
  nlohmann::json state;
  try {
    nlohmann::json head =
        nlohmann::json::parse(file.data() + sizeof header, file.data() + sizeof header + header.head_bytes);
    for (const auto& b : head.at("blocks")) sources[b.at("name")] = {b.at("shape"), b.at("type"), b.at("offset")};
    state = std::move(head.at("state"));
  } catch (const nlohmann::json::exception&) {
    refuse("a damaged checkpoint (its head makes no sense)");
  }

  for (const auto& [option, value] : options.items()) {
    const nlohmann::json its = state.is_object() ? state.value(option, nlohmann::json()) : nlohmann::json();
    if (its != value)
      throw multinode::UsageError(name + ": a training with " + option + " " + its.dump() + ", not " + value.dump() +
                                  "; go on with the same, or name another folder");
  }

  const std::span elements = file.subspan(sizeof header + header.head_bytes)
                                 .first(file.size() - sizeof header - header.head_bytes - sizeof sum);
  for (const NamedBlock& b : blocks) {
    require_agreement(b.shape, b.block.count, b.name);
    const auto source = sources.find(b.name);
    if (source == sources.end()) refuse("it has no '" + b.name + "', which the model has");
    const std::string here = text_of(b.shape, name_of(b.block.type));
    const std::string there = text_of(source->second.shape, source->second.type);
    if (here != there) refuse("its '" + b.name + "' is " + there + ", the model's " + here);
    if (source->second.offset > elements.size() || b.block.bytes() > elements.size() - source->second.offset)
      refuse("a damaged checkpoint ('" + b.name + "' is not inside)");
  }
  for (const auto& source : sources)
    if (std::none_of(blocks.begin(), blocks.end(), [&](const NamedBlock& b) { return b.name == source.first; }))
      refuse("it has '" + source.first + "', which the model has not");
  for (const NamedBlock& b : blocks)
    if (b.block.count > 0) std::memcpy(b.block.data, elements.data() + sources.at(b.name).offset, b.block.bytes());
  return state;
}

nlohmann::json read_checkpoint(const fs::path& path, std::span<const NamedBlock> blocks,
                               const nlohmann::json& options) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  if (error) throw multinode::UsageError("cannot read the checkpoint " + path.string() + ": " + error.message());
  std::vector<std::uint8_t> bytes(size);
  std::ifstream file(path, std::ios::binary);
  if (!file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size)))
    throw multinode::UsageError("cannot read the checkpoint " + path.string() + ": " + std::strerror(errno));
  return parse_checkpoint(bytes, path.string(), blocks, options);
}

nlohmann::json load_checkpoint(multinode::World& world, multinode::Communicator& communicator, const fs::path& path,
                               std::span<const NamedBlock> blocks, const nlohmann::json& options) {
  nlohmann::json state;
  if (world.rank() == 0 && !path.empty()) state = read_checkpoint(path, blocks, options);
  state = nlohmann::json::parse(world.gather("load_checkpoint", world.rank() == 0 ? state.dump() : "")[0]);
  if (!state.is_null()) broadcast_parameters(world, communicator, blocks);
  return state;
}

namespace {

constexpr std::string_view before_step = "step-", after_step = ".checkpoint";

// The step that a file is named for.
std::optional<std::uint64_t> step_of(std::string_view name) {
  if (!name.starts_with(before_step) || !name.ends_with(after_step)) return std::nullopt;
  name.remove_prefix(before_step.size());
  name.remove_suffix(std::min(name.size(), after_step.size()));
  return multinode::number_of<std::uint64_t>(name);
}

}  // namespace

CheckpointFolder::CheckpointFolder(fs::path folder, std::size_t keep, multinode::Watchdog* watchdog)
    : folder_(std::move(folder)), keep_(keep), watchdog_(watchdog) {
  if (keep_ == 0) throw std::logic_error("CheckpointFolder: keeps none");
  std::error_code error;
  fs::create_directory(folder_, error);
  if (error == std::errc::file_exists) error = std::make_error_code(std::errc::not_a_directory);
  if (!error && ::access(folder_.c_str(), W_OK | X_OK) != 0) error = {errno, std::generic_category()};
  if (!error)
    for (const auto& entry : fs::directory_iterator(folder_, error)) {
      const std::string name = entry.path().filename().string();
      if (name.ends_with(temporary) && step_of(name.substr(0, name.size() - std::strlen(temporary)))) {
        fs::remove(entry.path(), error);
        if (error) break;
      }
    }
  if (error)
    throw multinode::UsageError("no checkpoints can be written to " + folder_.string() + ": " + error.message());
}

CheckpointFolder::~CheckpointFolder() {
  try {
    wait();
  } catch (const std::exception&) {  // the next start finds the checkpoint before
  }
}

fs::path CheckpointFolder::path_of(std::uint64_t step) const {
  const std::string digits = std::to_string(step);
  const std::string zeros(digits.size() < 10 ? 10 - digits.size() : 0, '0');  // so that ls shows them in order
  return folder_ / (std::string(before_step) + zeros + digits + std::string(after_step));
}

std::vector<std::uint64_t> CheckpointFolder::steps() const {
  std::vector<std::uint64_t> steps;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const auto step = step_of(entry.path().filename().string());
    if (step && entry.path() == path_of(*step)) steps.push_back(*step);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

fs::path CheckpointFolder::write(std::uint64_t step, const nlohmann::json& state, std::span<const NamedBlock> blocks) {
  start_write(step, state, blocks);
  wait();
  return path_of(step);
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
    const std::vector<std::uint64_t> all = steps();
    for (std::size_t i = keep_; i < all.size(); ++i) fs::remove(path_of(all[i]));
    return path_of(step);
  });
}

void CheckpointFolder::wait() {
  if (!writing_.valid()) return;
  std::optional<multinode::Watchdog::Operation> inside;
  if (watchdog_) inside.emplace(*watchdog_, "writing a checkpoint", multinode::Watchdog::nobody);
  written_ = writing_.get();
}

std::optional<fs::path> CheckpointFolder::take_written() {
  if (writing_.valid() && writing_.wait_for(std::chrono::seconds(0)) == std::future_status::ready) wait();
  return std::exchange(written_, std::nullopt);
}

std::optional<fs::path> CheckpointFolder::newest() const {
  const std::vector<std::uint64_t> all = steps();
  if (all.empty()) return std::nullopt;
  return path_of(all[0]);
}

}  // namespace ddp
