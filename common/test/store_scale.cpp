// store_scale RANKS...: plays that many ranks against the server of a TcpStore, which runs in a separate process,
// with the messages of a World. Prints per number of ranks: seconds until all have met and proved the wiring, the
// server's processor time per second of heartbeats, bytes per rank (sent and received; the server's memory), seconds
// from the death of a rank to the verdict at every other. Exit status 0: every rank got the right answers; else 1.
#include <multinode/base/check.hpp>
#include <multinode/base/descriptor.hpp>
#include <multinode/base/seconds.hpp>
#include <multinode/store/store_protocol.hpp>
#include <multinode/store/tcp_store.hpp>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

using namespace multinode;
using protocol::Operation;
using protocol::Request;
using protocol::Status;
using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

namespace {

constexpr int at_once = 1000;  // connections that are being made
constexpr std::chrono::milliseconds heartbeat(500), heartbeats_for(10'000), heartbeats_of_few(2'000);
constexpr int group_size = 256, beats_per_pulse = 4;  // as in a World

class Server {
 public:
  explicit Server(const std::string& token) {
    auto [from, to] = make_pipe();
    pid_ = check_errno(::fork(), "fork");
    if (pid_ == 0) {
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      const TcpStoreServer server("127.0.0.1", 0, {token, true});
      const auto port = server.port();
      if (::write(to.get(), &port, sizeof port) != sizeof port) ::_exit(1);
      for (;;) ::pause();
    }
    to.reset();  // else a server that dies would not end the pipe
    if (::read(from.get(), &port, sizeof port) != sizeof port) throw std::runtime_error("the server did not start");
    empty_ = resident();
  }
  ~Server() {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  double processor_seconds() const {
    clockid_t clock{};
    timespec used{};
    if (::clock_getcpuclockid(pid_, &clock) != 0 || ::clock_gettime(clock, &used) != 0)
      throw std::runtime_error("no processor time of the server");
    return static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) / 1e9;
  }
  double memory() const { return resident() - empty_; }  // bytes

  std::uint16_t port = 0;

 private:
  double resident() const {
    std::ifstream file("/proc/" + std::to_string(pid_) + "/statm");
    double total = 0, pages = 0;
    file >> total >> pages;
    return pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
  }
  pid_t pid_ = 0;
  double empty_ = 0;
};

struct Rank {
  Descriptor fd;
  protocol::FrameReader in;
  std::string greeting;  // the server's magic and challenge, as far as received
  protocol::Hello hello{};
  std::vector<std::string> script;
  std::size_t next = 0;  // request of the script
  bool told = false;     // has the verdict
};

class Ranks {
 public:
  Ranks(int count, const std::string& token, std::uint16_t port)
      : token_(token), port_(port), ranks_(static_cast<std::size_t>(count)), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {
    const std::string key = "gather/0/", about(250, 'x');
    const auto set = [&](const std::string& name, const std::string& value, int readers) {
      return encode(Request{
          .operation = Operation::set, .key = name, .value = value, .readers = static_cast<std::uint32_t>(readers)});
    };
    const auto get = [&](const std::string& name) {
      return encode(Request{.operation = Operation::get, .key = name, .timeout_ms = 60'000});
    };
    const auto text = [](int number) { return std::to_string(number); };
    for (int r = 0; r < count; ++r) {
      auto& script = ranks_[static_cast<std::size_t>(r)].script;
      if (r > 0) {
        script.push_back(set("host of rank " + text(r), "host", 0));
        if (r >= group_size) script.push_back(get(key + "group " + text(r / group_size) + "/0"));
        script.push_back(set(key + text(r) + "/0", about, 1));
        script.push_back(get(key + "combined/0"));
        script.push_back(get("node of rank " + text(r)));
        continue;
      }
      for (int other = 1; other < count; ++other) {
        if (const int next = other / group_size + 1;
            (other % group_size == 0 || other == 1) && next * group_size < count)
          script.push_back(
              set(key + "group " + text(next) + "/0", ".", std::min(group_size, count - next * group_size)));
        script.push_back(get(key + text(other) + "/0"));
      }
      for (int other = 1; other < count; ++other) script.push_back(set("node of rank " + text(other), "0 8", 1));
      script.push_back(set(key + "combined/0", ".1", count - 1));
    }
  }

  double meet() {
    const auto start = Clock::now();
    while (finished_ < ranks_.size()) {
      while (connected_ < ranks_.size() && connected_ - welcomed_ < at_once) connect(connected_++);
      turn(60s, start);
    }
    return seconds_since(start);
  }

  // Returns the number of heartbeats per second.
  double beat() {
    const auto start = Clock::now();
    std::size_t sent = 0;
    while (Clock::now() < start + (ranks_.size() < 1000 ? heartbeats_of_few : heartbeats_for)) {
      const auto due = static_cast<std::size_t>(static_cast<double>(ranks_.size()) * seconds_since(start) /
                                                std::chrono::duration<double>(heartbeat).count());
      for (; sent < due; ++sent) send_beat(sent % ranks_.size(), sent / ranks_.size());
      turn(1ms, start, false);
    }
    return static_cast<double>(sent) / seconds_since(start);
  }

  double kill(std::size_t rank) {
    const auto start = Clock::now();
    ranks_[rank].fd.reset();
    while (told_ < ranks_.size() - 1) turn(60s, start);
    return seconds_since(start);
  }

  double bytes_per_rank() const { return static_cast<double>(bytes_) / static_cast<double>(ranks_.size()); }

 private:
  void connect(std::size_t r) {
    auto& rank = ranks_[r];
    rank.fd = Descriptor(check_errno(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket"));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port_);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    const int on = 1;
    ::setsockopt(rank.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (::connect(rank.fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) < 0 && errno != EINPROGRESS)
      throw std::system_error(errno, std::generic_category(), "connect");
    watch(EPOLL_CTL_ADD, r, EPOLLOUT);
  }

  void watch(int operation, std::size_t r, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = r;
    check_errno(::epoll_ctl(epoll_.get(), operation, ranks_[r].fd.get(), &event), "epoll_ctl");
  }

  void send(std::size_t r, const std::string& bytes) {
    bytes_ += bytes.size();
    if (::send(ranks_[r].fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(bytes.size()))
      throw std::runtime_error("the server does not read");
  }

  void send_beat(std::size_t r, std::size_t number) {
    send(r, encode(Request{.operation = Operation::beat,
                           .status = number % beats_per_pulse == 0,
                           .progress = {3, 2, everyone, 100, {}, "MPI_Allreduce"}}));
  }

  void turn(std::chrono::milliseconds patience, Clock::time_point start, bool must = true) {
    std::array<epoll_event, 512> events{};
    const int count = ::epoll_wait(epoll_.get(), events.data(), events.size(), static_cast<int>(patience.count()));
    if (count <= 0 && must) throw std::runtime_error("silence after " + std::to_string(seconds_since(start)) + " s");
    for (int i = 0; i < count; ++i) {
      const auto r = events[static_cast<std::size_t>(i)].data.u64;
      if (events[static_cast<std::size_t>(i)].events & EPOLLOUT) {
        const auto rank = static_cast<std::int32_t>(r), size = static_cast<std::int32_t>(ranks_.size());
        ranks_[r].hello = {token_,
                           "run/scale/0",
                           rank,
                           size,
                           60'000,
                           "host node" + std::to_string(r / 8) + ", pid " + std::to_string(1000 + r),
                           "node" + std::to_string(r / 8)};
        send(r, std::string(protocol::magic));
        watch(EPOLL_CTL_MOD, r, EPOLLIN);
      } else {
        receive(r);
      }
    }
  }

  void receive(std::size_t r) {
    auto& rank = ranks_[r];
    std::array<char, 4096> chunk{};
    const auto got = ::recv(rank.fd.get(), chunk.data(), chunk.size(), 0);
    if (got <= 0) throw std::runtime_error("the server dropped rank " + std::to_string(r));
    bytes_ += static_cast<std::size_t>(got);
    std::string_view bytes(chunk.data(), static_cast<std::size_t>(got));
    constexpr std::size_t greeting = protocol::magic.size() + protocol::nonce_bytes;
    if (const auto part = bytes.substr(0, greeting - rank.greeting.size()); !part.empty()) {
      rank.greeting += part;
      bytes.remove_prefix(part.size());
      if (rank.greeting.size() < greeting) return;
      rank.hello = proved(rank.hello, rank.greeting.substr(protocol::magic.size()));
      send(r, encode(rank.hello));
    }
    rank.in.append(bytes);
    while (const auto frame = rank.in.next()) {
      const auto answer = protocol::parse_answer(*frame);
      if (answer.status == Status::pulse) continue;
      if (answer.status == Status::verdict) {
        const auto text = protocol::parse_verdict(answer.body).text;
        if (!text.ends_with("is gone: it was killed, or it exited without an error message"))
          throw std::runtime_error("a wrong verdict: " + text);
        told_ += !std::exchange(rank.told, true);
        continue;
      }
      if (answer.status != Status::done) throw std::runtime_error("refused: " + answer.body);
      if (rank.next == 0) {
        if (answer.body != proof_of_server(rank.hello, token_, rank.greeting.substr(protocol::magic.size())))
          throw std::runtime_error("the server does not know the token");
        ++welcomed_;
        send_beat(r, 1);
      }
      if (rank.next == rank.script.size())
        ++finished_;
      else
        send(r, std::exchange(rank.script[rank.next], {}));
      ++rank.next;
    }
  }

  const std::string token_;
  const std::uint16_t port_;
  std::vector<Rank> ranks_;
  Descriptor epoll_;
  std::size_t connected_ = 0, welcomed_ = 0, finished_ = 0, told_ = 0, bytes_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  try {
    rlimit descriptors{};
    ::getrlimit(RLIMIT_NOFILE, &descriptors);
    descriptors.rlim_cur = descriptors.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &descriptors);
    std::puts(
        "# ranks  meet_s  meet_server_cpu_s  beats_per_s  server_cpu_percent  wire_B_per_rank  memory_B_per_rank  "
        "verdict_s");
    for (int i = 1; i < argc; ++i) {
      const int count = std::stoi(argv[i]);
      const std::string token = random_token();
      const Server server(token);
      Ranks ranks(count, token, server.port);
      const double meet = ranks.meet(), met = server.processor_seconds(), wire = ranks.bytes_per_rank(),
                   memory = server.memory() / count;
      const auto start = Clock::now();
      const double beats = ranks.beat();
      const double load = (server.processor_seconds() - met) / seconds_since(start) * 100;
      const double verdict = ranks.kill(static_cast<std::size_t>(count) / 2);
      std::printf("%7d %7.3f %18.3f %12.0f %19.1f %16.0f %18.0f %10.3f\n", count, meet, met, beats, load, wire, memory,
                  verdict);
      std::fflush(stdout);
    }
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "store_scale: %s\n", e.what());
    return 1;
  }
}
