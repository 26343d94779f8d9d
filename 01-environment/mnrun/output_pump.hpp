// output_pump.hpp: copies the output of the processes to mnrun's stdout and stderr, each line with a prefix. A line
// comes whole, unless its process leaves it without an end for a moment, as a progress bar and a prompt do.
#pragma once

#include <multinode/base/descriptor.hpp>

#include <poll.h>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace mnrun {

using multinode::Descriptor;

// Writes to a file descriptor on a separate thread, so that a slow reader does not block mnrun.
class Sink {
 public:
  Sink(int fd, int wake) : fd_(fd), wake_(wake) {}
  ~Sink();  // writes the rest
  Sink(const Sink&) = delete;

  void put(std::string_view bytes);
  bool has_room() const;  // `wake` becomes readable when there is room again
  bool empty() const;
  bool closed() const;  // the reader has closed its end
  int error() const;    // errno of the first failure that was another; the bytes were lost, later ones are tried

 private:
  void write_all();

  const int fd_, wake_;
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  std::string waiting_;
  std::size_t in_flight_ = 0;
  bool ending_ = false, closed_ = false;
  int error_ = 0;
  std::thread thread_;
};

class OutputPump {
 public:
  static constexpr std::size_t longest_line = 1 << 20;     // a longer one is written in pieces of this size
  static constexpr std::chrono::milliseconds moment{200};  // for which the end of a line is waited for

  OutputPump(int out_fd, int err_fd);

  // Returns the end of a pipe for a process to write to. The output goes to `stream` (1 or 2) and, if given, to `log`.
  Descriptor add(int stream, std::string prefix, Descriptor log);

  // Prints a line of mnrun itself on stderr.
  void print(const std::string& line);

  void poll_entries(std::vector<pollfd>& entries) const;  // appends the descriptors to wait for
  void serve();                                           // moves the output that is there, without waiting
  int timeout() const;                                    // for poll(): until serve() moves a line without an end
  bool closed() const { return sources_.empty(); }        // all processes have closed their ends
  void close_idle();                                      // closes the pipes that are empty
  int error() const;                                      // errno: something of the output is lost; 0: nothing
  bool drained() const { return sinks_[0].empty() && sinks_[1].empty(); }

 private:
  struct Source {
    Descriptor pipe;
    int stream;
    std::string prefix;
    Descriptor log;
    std::string line{};                             // that has not been passed on, because its end has not come
    std::chrono::steady_clock::time_point since{};  // when the line began
    enum class At { start, inside, returned } at = At::start;  // of a line, or behind a carriage return in it
  };
  Sink& sink(const Source& source) { return sinks_[source.stream - 1]; }
  enum class Moved { some, nothing, no_room, end };
  Moved move(Source& source);
  void take(Source& source, std::string_view bytes);
  void pass_on(Source& source, std::size_t count);
  void end_line(Source& source);

  Descriptor wake_;
  Sink sinks_[2];
  int open_[2] = {-1, -1};  // the pipe whose line has no end yet
  std::vector<Source> sources_;
  int log_error_ = 0;
};

}  // namespace mnrun
