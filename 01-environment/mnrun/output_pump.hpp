// output_pump.hpp: brings the processes' lines to mnrun's own stdout and stderr, whole and with a prefix.
#pragma once

#include <multinode/descriptor.hpp>

#include <poll.h>

#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace mnrun {

using multinode::Descriptor;

// Writes to a file descriptor on a thread of its own: whoever reads it may stop for as long as he likes.
class Sink {
 public:
  Sink(int fd, int wake) : fd_(fd), wake_(wake) {}
  ~Sink();  // writes what is left
  Sink(const Sink&) = delete;

  void put(std::string_view bytes);
  bool has_room() const;  // `wake` becomes readable when it has again
  bool empty() const;
  bool failed() const;  // nobody reads any more

 private:
  void write_all();

  const int fd_, wake_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::string waiting_;
  std::size_t in_flight_ = 0;
  bool ending_ = false, failed_ = false;
  std::thread thread_;
};

class OutputPump {
 public:
  static constexpr std::size_t longest_line = 1 << 20;  // a longer one is written in pieces of this size

  OutputPump(int out_fd, int err_fd);

  // The end of a pipe to give to a process; what it writes goes to `stream` (1 or 2) and to `log`, if there is one.
  Descriptor add(int stream, std::string prefix, Descriptor log);

  // A line of mnrun's own, on stderr.
  void say(const std::string& line) { sinks_[1].put("mnrun: " + line + "\n"); }

  void poll_entries(std::vector<pollfd>& entries) const;  // appends what to wait for
  void serve();                                           // moves what can be moved without waiting
  bool closed() const { return sources_.empty(); }        // every process has closed its end
  void close_idle();                                      // those that nothing is waiting in
  bool drained() const { return sinks_[0].empty() && sinks_[1].empty(); }

 private:
  struct Source {
    Descriptor pipe;
    int stream;
    std::string prefix;
    Descriptor log;
    std::string line;  // the beginning of a line whose end has not come yet
  };
  Sink& sink(const Source& source) { return sinks_[source.stream - 1]; }
  enum class Moved { some, nothing, no_room, end };
  Moved move(Source& source);
  void take(Source& source, std::string_view bytes);
  void write_log(Source& source, std::string_view bytes);
  void finish(Source& source);

  Descriptor wake_;
  Sink sinks_[2];
  std::vector<Source> sources_;
};

}  // namespace mnrun
