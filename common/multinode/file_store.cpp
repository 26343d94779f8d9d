// The file: eight bytes of magic, then records: the length of the body (u32), its CRC-32 (u32), the body: the length of
// the key (u32), the key, the value. Little-endian. The last record of a key counts. A writer holds an exclusive lock
// on the file, a reader a shared one, so an incomplete last record means that its writer died: the next writer cuts it
// off.
#include <multinode/check.hpp>
#include <multinode/file_store.hpp>
#include <multinode/socket.hpp>

#include <boost/crc.hpp>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <system_error>
#include <thread>

namespace multinode {

using detail::Clock;
using std::chrono::milliseconds;

namespace {

constexpr std::string_view magic{"mnfile\x01\n", 8};
constexpr std::size_t record_header = 8;
constexpr std::size_t longest_body = 4 + Store::max_key + Store::max_value;
constexpr off_t longest_file = off_t{1} << 30;
constexpr milliseconds lock_timeout(60'000);  // of what has no deadline of its own

void put(std::string& to, std::uint32_t value) {
  for (int i = 0; i < 4; ++i) to += static_cast<char>(value >> (8 * i));
}

std::uint32_t get_u32(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 0; i < 4; ++i) value |= std::uint32_t{static_cast<unsigned char>(bytes[i])} << (8 * i);
  return value;
}

std::uint32_t checksum(std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

std::string errno_text(int error) { return std::generic_category().message(error); }

}  // namespace

class FileStore::Implementation {
 public:
  explicit Implementation(std::filesystem::path path)
      : path_(std::move(path)),
        name_("the store in " + path_.string()),
        fd_(::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0600)) {
    if (!fd_)
      throw UsageError("cannot open " + name_ + ": " + errno_text(errno) +
                       "; it has to be a file that every rank can read and write");
    if (!S_ISREG(status().st_mode)) throw UsageError(name_ + " cannot be used: that is not a regular file");
    const Lock lock(*this, F_WRLCK, detail::deadline_in(lock_timeout));
    std::string start(magic.size(), '\0');
    start.resize(read(start, 0));
    if (!magic.starts_with(start)) throw foreign("it is not a store's file");
    if (start.size() < magic.size()) {  // new, or its creator died on the way
      const auto rest = magic.substr(start.size());
      const auto at = static_cast<off_t>(start.size());
      write(rest, at);
    }
    refresh();
  }

  void set(const std::string& key, std::string_view value) {
    const Lock lock(*this, F_WRLCK, detail::deadline_in(lock_timeout));
    refresh();
    append(key, value);
  }

  std::string get(const std::string& key, milliseconds timeout) {
    wait({&key, 1}, timeout);
    return values_.at(key);
  }

  std::int64_t add(const std::string& key, std::int64_t amount) {
    const Lock lock(*this, F_WRLCK, detail::deadline_in(lock_timeout));
    refresh();
    std::int64_t sum = 0;
    if (const auto found = values_.find(key); found != values_.end()) {
      const auto& text = found->second;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), sum);
      if (error != std::errc() || end != text.data() + text.size())
        throw StoreRefused(name_ + " refuses, while adding to " + detail::quoted(key) + ": its value is not a number");
    }
    if (__builtin_add_overflow(sum, amount, &sum))
      throw StoreRefused(name_ + " refuses, while adding to " + detail::quoted(key) +
                         ": the sum has more than 64 bits");
    append(key, std::to_string(sum));
    return sum;
  }

  void wait(std::span<const std::string> keys, milliseconds timeout) {
    const auto deadline = detail::deadline_in(timeout);
    for (milliseconds pause(1);; pause = std::min(2 * pause, milliseconds(50))) {
      {
        const Lock lock(*this, F_RDLCK, deadline);
        refresh();
      }
      const auto missing =
          std::find_if(keys.begin(), keys.end(), [this](const auto& key) { return !values_.contains(key); });
      if (missing == keys.end()) return;
      const auto left = deadline - Clock::now();
      if (left <= Clock::duration::zero())
        throw StoreTimeout("no value for " + detail::quoted(*missing) + " in " + name_ + " within " +
                           detail::to_text(timeout));
      std::this_thread::sleep_for(std::min<Clock::duration>(pause, left));
    }
  }

  std::string compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
    const Lock lock(*this, F_WRLCK, detail::deadline_in(lock_timeout));
    refresh();
    const auto found = values_.find(key);
    std::string value = found == values_.end() ? "" : found->second;
    if (value != expected) return value;
    append(key, desired);
    return std::string(desired);
  }

 private:
  // The lock of an open file description: unlike a process's, it also keeps two stores of one process apart, and is not
  // given back when another descriptor of the file is closed. Taken in tries, because who holds it may be stopped.
  class Lock {
   public:
    Lock(Implementation& store, short type, Clock::time_point deadline) : fd_(store.fd_.get()) {
      for (std::chrono::microseconds pause(50);; pause = std::min(2 * pause, std::chrono::microseconds(10'000))) {
        if (change(type)) return;
        if (errno != EAGAIN && errno != EACCES && errno != EINTR)
          throw StoreLost("cannot lock " + store.name_ + ": " + errno_text(errno));
        if (Clock::now() >= deadline)
          throw StoreTimeout("another process holds the lock of " + store.name_ + " and does not give it back");
        std::this_thread::sleep_for(pause);
      }
    }
    ~Lock() { change(F_UNLCK); }
    Lock(const Lock&) = delete;
    Lock& operator=(const Lock&) = delete;

   private:
    bool change(short type) {
      struct flock lock {};
      lock.l_type = type;
      lock.l_whence = SEEK_SET;
      return ::fcntl(fd_, F_OFD_SETLK, &lock) == 0;
    }
    int fd_;
  };

  UsageError foreign(const std::string& why) const {
    return UsageError(name_ + " cannot be used: " + why + "; remove the file or name another");
  }

  struct stat status() const {
    struct stat result {};
    if (::fstat(fd_.get(), &result) < 0) throw StoreLost("lost " + name_ + ": " + errno_text(errno));
    return result;
  }

  std::size_t read(std::string& into, off_t from) const {
    std::size_t done = 0;
    while (done < into.size()) {
      const auto got = ::pread(fd_.get(), into.data() + done, into.size() - done, from + static_cast<off_t>(done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) throw StoreLost("cannot read " + name_ + ": " + errno_text(errno));
      if (got == 0) break;
      done += static_cast<std::size_t>(got);
    }
    return done;
  }

  // What a full disk took of a record is an incomplete record, like that of a writer that died.
  void write(std::string_view bytes, off_t at) const {
    for (std::size_t done = 0; done < bytes.size();) {
      const auto put = ::pwrite(fd_.get(), bytes.data() + done, bytes.size() - done, at + static_cast<off_t>(done));
      if (put >= 0) {
        done += static_cast<std::size_t>(put);
      } else if (errno != EINTR) {
        const int error = errno;
        const auto what = "cannot write to " + name_ + ": " + errno_text(error);
        if (error == ENOSPC || error == EDQUOT || error == EFBIG) throw StoreRefused(what);
        throw StoreLost(what);
      }
    }
  }

  // Takes in what others have appended. Under a lock.
  void refresh() {
    const auto now = status();
    if (now.st_nlink == 0) throw StoreLost("lost " + name_ + ": the file was removed");
    if (now.st_size < end_) throw foreign("it was shortened while in use");
    while (end_ < now.st_size) {
      constexpr off_t most = 4 << 20;
      std::string bytes(static_cast<std::size_t>(std::min(now.st_size - end_, most)), '\0');
      bytes.resize(read(bytes, end_));
      const auto taken = parse(bytes);
      if (taken == 0) return;  // an incomplete record, that no one is writing any more
      end_ += static_cast<off_t>(taken);
    }
  }

  // Returns the length of the complete records at the start of `bytes`.
  std::size_t parse(std::string_view bytes) {
    std::size_t taken = 0;
    while (bytes.size() - taken >= record_header) {
      const auto record = bytes.substr(taken);
      const std::size_t length = get_u32(record);
      if (length < 4 || length > longest_body) throw foreign("it is damaged (a record's length)");
      if (record.size() - record_header < length) break;
      const auto body = record.substr(record_header, length);
      if (checksum(body) != get_u32(record.substr(4))) throw foreign("it is damaged (a record's checksum)");
      const std::size_t key_length = get_u32(body);
      if (key_length > max_key || key_length > length - 4) throw foreign("it is damaged (a key's length)");
      values_.insert_or_assign(std::string(body.substr(4, key_length)), std::string(body.substr(4 + key_length)));
      taken += record_header + length;
    }
    return taken;
  }

  // After refresh(), under the exclusive lock.
  void append(const std::string& key, std::string_view value) {
    if (key.size() > max_key || value.size() > max_value)
      throw StoreRefused("a key of " + std::to_string(key.size()) + " bytes with a value of " +
                         std::to_string(value.size()) + " is too large for " + name_ + ": " + detail::quoted(key));
    std::string body;
    body.reserve(4 + key.size() + value.size());
    put(body, static_cast<std::uint32_t>(key.size()));
    body += key;
    body += value;
    std::string record;
    record.reserve(record_header + body.size());
    put(record, static_cast<std::uint32_t>(body.size()));
    put(record, checksum(body));
    record += body;
    if (end_ + static_cast<off_t>(record.size()) > longest_file)
      throw StoreRefused(name_ + " is full: " + std::to_string(longest_file >> 20) + " MiB");
    if (status().st_size > end_ && ::ftruncate(fd_.get(), end_) < 0)
      throw StoreLost("cannot repair " + name_ + ": " + errno_text(errno));
    write(record, end_);
    end_ += static_cast<off_t>(record.size());
    values_.insert_or_assign(key, std::string(value));
  }

  std::filesystem::path path_;
  std::string name_;
  Descriptor fd_;
  off_t end_ = static_cast<off_t>(magic.size());  // of the records that values_ holds
  std::map<std::string, std::string, std::less<>> values_;
};

FileStore::FileStore(std::filesystem::path path) : implementation_(std::make_unique<Implementation>(std::move(path))) {}
FileStore::~FileStore() = default;

void FileStore::set(const std::string& key, std::string_view value) { implementation_->set(key, value); }
std::string FileStore::get(const std::string& key, milliseconds timeout) { return implementation_->get(key, timeout); }
std::int64_t FileStore::add(const std::string& key, std::int64_t amount) { return implementation_->add(key, amount); }
void FileStore::wait(std::span<const std::string> keys, milliseconds timeout) { implementation_->wait(keys, timeout); }
std::string FileStore::compare_set(const std::string& key, std::string_view expected, std::string_view desired) {
  return implementation_->compare_set(key, expected, desired);
}

}  // namespace multinode
