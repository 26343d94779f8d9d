#include <multinode/process/process_tree.hpp>
#include <test/support/program_test.hpp>
#include <test/support/temporary_folder.hpp>

#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <regex>
#include <stdexcept>

extern char** environ;  // NOLINT

namespace multinode::testing {

using Clock = std::chrono::steady_clock;

Process::Process(std::vector<std::string> argv, const std::map<std::string, std::string>& environment)
    : start_(Clock::now()) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (!environment.contains(text.substr(0, text.find('=')))) variables.push_back(text);
  }
  for (const auto& [name, value] : environment)
    if (!value.empty()) variables.push_back(name + "=" + value);

  auto [out, out_to] = make_pipe();
  auto [err, err_to] = make_pipe();
  const Descriptor nothing(check_errno(open("/dev/null", O_RDONLY | O_CLOEXEC), "/dev/null"));
  child_.emplace(ChildCommand{.arguments = std::move(argv),
                              .environment = std::move(variables),
                              .descriptors = {nothing.get(), out_to.get(), err_to.get()},
                              .own_group = true});
  pid_fd_ = Descriptor(static_cast<int>(syscall(SYS_pidfd_open, child_->pid(), 0)));
  out_reader_ = std::jthread([this, fd = std::move(out)](std::stop_token stop) { read_all(stop, fd.get(), out_); });
  err_reader_ = std::jthread([this, fd = std::move(err)](std::stop_token stop) { read_all(stop, fd.get(), err_); });
}

void Process::read_all(const std::stop_token& stop, int fd, std::string& into) {
  char bytes[65536];
  for (int last = 0; last < 16;) {  // after a stop request it still reads up to 1 MiB from the pipe
    const bool stopping = stop.stop_requested();
    last += stopping;
    pollfd ready{fd, POLLIN, 0};
    if (poll(&ready, 1, stopping ? 0 : 20) <= 0) {
      if (stopping) break;
      continue;
    }
    const ssize_t count = read(fd, bytes, sizeof bytes);
    if (count <= 0) break;
    const std::lock_guard lock(mutex_);
    into.append(bytes, static_cast<std::size_t>(count));
    changed_.notify_all();
  }
  const std::lock_guard lock(mutex_);
  --open_;
  changed_.notify_all();
}

void Process::signal(int number) const {
  if (!child_) throw std::logic_error("a signal for a process whose end was waited for");
  kill(child_->pid(), number);
}

std::optional<Match> Process::wait_for(const std::string& pattern, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::size_t line[2] = {0, 0}, seen[2] = {0, 0};  // per stream: start of the last line, end of the searched part
  std::unique_lock lock(mutex_);
  for (;;) {
    for (const int i : {0, 1}) {
      const std::string& stream = i == 0 ? out_ : err_;
      if (stream.size() == seen[i]) continue;
      if (Match match = match_in(stream.substr(line[i]), pattern); !match.empty()) return match;
      seen[i] = stream.size();
      line[i] = stream.rfind('\n') + 1;
    }
    const bool ended = open_ == 0;
    const auto more = [&] { return out_.size() > seen[0] || err_.size() > seen[1] || (open_ == 0 && !ended); };
    if (ended || !changed_.wait_until(lock, deadline, more)) return std::nullopt;
  }
}

Result Process::wait(std::chrono::milliseconds timeout) {
  if (!child_) throw std::logic_error("wait() was called before");
  pollfd ended{pid_fd_.get(), POLLIN, 0};
  if (poll(&ended, 1, static_cast<int>(timeout.count())) == 0) child_->signal(SIGKILL);
  Result result;
  result.status = child_->wait().as_exit_status();
  result.seconds = Clock::now() - start_;
  {  // The command's output is in the pipes now; descendants that keep them open get one more second.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(1), [&] { return open_ == 0; });
  }
  child_.reset();  // kills what is left of its group
  out_reader_ = {};
  err_reader_ = {};
  result.out = out_;
  result.err = err_;
  return result;
}

pid_t Process::find(const std::string& variable, const std::string& value) const {
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string zero(1, '\0'), text = zero + text_of("/proc/" + name + "/environ");
    if (text.find(zero + variable + "=" + value + zero) == std::string::npos) continue;
    const pid_t pid = std::stoi(name);
    for (pid_t up = pid; up > 1; up = process_state(up).parent)
      if (up == child_->pid()) return pid;
  }
  return 0;
}

Result run(std::vector<std::string> argv, const std::map<std::string, std::string>& environment,
           std::chrono::milliseconds timeout) {
  return Process(std::move(argv), environment).wait(timeout);
}

bool soon(const std::function<bool()>& condition) {
  for (const auto deadline = Clock::now() + patience; !condition();
       std::this_thread::sleep_for(std::chrono::milliseconds(5)))
    if (Clock::now() > deadline) return false;
  return true;
}

char state_of(pid_t pid) { return process_state(pid).state; }
bool is_running(pid_t pid) { return state_of(pid) != '?' && state_of(pid) != 'Z'; }
bool ends(pid_t pid) {
  return soon([pid] { return !is_running(pid); });
}

std::vector<Match> matches_in(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<Match> all;
  for (std::sregex_iterator at(text.begin(), text.end(), regex), end; at != end; ++at)
    all.emplace_back(at->begin(), at->end());
  return all;
}

Match match_in(const std::string& text, const std::string& pattern) {
  std::smatch match;
  std::regex_search(text, match, std::regex(pattern));
  return {match.begin(), match.end()};
}

bool is_like(const std::string& text, const std::string& pattern) {
  return std::regex_match(text, std::regex(pattern));
}

std::size_t occurrences(const std::string& text, const std::string& what) {
  std::size_t count = 0;
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

std::string in_torch(const std::string& program) {
  const char* named = std::getenv("MULTINODE_TORCH");
  const char* home = std::getenv("HOME");
  return (named ? std::string(named) : std::string(home ? home : "") + "/.cache/multinode/torch") + "/bin/" + program;
}

#ifdef MPIEXEC
constexpr const char* mpirun = MPIEXEC;
#else
constexpr const char* mpirun = "mpirun";
#endif

bool is_open_mpi() {
#if defined(MPI_IS_OPEN_MPI) || !defined(MPIEXEC)
  return true;
#else
  return false;
#endif
}

const char* mpi_rank_variable() { return is_open_mpi() ? "OMPI_COMM_WORLD_RANK" : "PMI_RANK"; }

std::vector<std::string> under_mpirun(int ranks, std::vector<std::string> command) {
  std::vector<std::string> argv{mpirun};
  if (is_open_mpi()) {
    // Two mpiruns that start and end at the same time in one session folder (ompi.HOST.UID) fail.
    static const TemporaryFolder sessions;
    argv.insert(argv.end(), {"--allow-run-as-root", "--oversubscribe", "--mca", "orte_tmpdir_base", sessions.path()});
  } else
    argv.push_back("-disable-auto-cleanup");  // otherwise Hydra kills all ranks when one fails, before they report it
  argv.insert(argv.end(), {"-n", std::to_string(ranks)});
  argv.insert(argv.end(), command.begin(), command.end());
  return argv;
}

}  // namespace multinode::testing
