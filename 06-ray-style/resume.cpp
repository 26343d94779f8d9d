// A training loses its process twice, once while it writes its checkpoint, and ends with the bits of an undisturbed
// one.
//
//     parent   waits ......... starts it again .......... starts it again ................ compares
//     worker   0 --> 30 -> 37 X        30 --> 60 -> 70 X        60 --> 100
//
//   g++ -std=c++20 -O2 resume.cpp -o resume
//   ./resume
//
// Exit status: 0 if the bits are the same and no more steps were lost than necessary, 1 if not.
// New: a checkpoint that is whole or not there, and random numbers that a new process repeats.
// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>

constexpr int steps = 100, checkpoint_every = 10;
constexpr char file[] = "resume.checkpoint";

struct State {  // all that the next step depends on
  std::int64_t step = 0;
  double weight = 0, bias = 0, weight_momentum = 0, bias_momentum = 0;
};

// From 0 to 1: a function of its argument alone, so that each process draws the same.
double random(std::int64_t number) {
  std::uint64_t x = static_cast<std::uint64_t>(number) * 0x9e3779b97f4a7c15 + 0x9e3779b97f4a7c15;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  return static_cast<double>(x >> 11) * 0x1p-53;
}

// One step of learning the line y = 3 x + 1 from one sample.
void train(State& state) {
  const double x = random(state.step), error = state.weight * x + state.bias - (3 * x + 1);
  state.weight_momentum = 0.9 * state.weight_momentum + error * x;
  state.bias_momentum = 0.9 * state.bias_momentum + error;
  state.weight -= 0.1 * state.weight_momentum;
  state.bias -= 0.1 * state.bias_momentum;
  ++state.step;
}

// Under another name first: rename() puts the new file in the place of the old one, wholly or not at all.
bool save(const State& state, bool dies) {
  constexpr char written[] = "resume.checkpoint.new";
  std::FILE* const out = std::fopen(written, "wb");
  if (!out) return false;
  const char* const bytes = reinterpret_cast<const char*>(&state);
  bool right = std::fwrite(bytes, 1, sizeof state / 2, out) == sizeof state / 2;
  if (dies) std::fflush(out), ::raise(SIGKILL);  // in the middle of the file
  right = std::fwrite(bytes + sizeof state / 2, sizeof state - sizeof state / 2, 1, out) == 1 && right;
  right = std::fflush(out) == 0 && ::fsync(::fileno(out)) == 0 && right;  // on the disk, before it gets the name
  return std::fclose(out) == 0 && right && std::rename(written, file) == 0;
}

State load() {  // the state of the checkpoint, or the start
  State state;
  std::FILE* const in = std::fopen(file, "rb");
  if (in && std::fread(&state, sizeof state, 1, in) != 1) state = State{};
  if (in) std::fclose(in);
  return state;
}

// Returns the exit status of the worker process. It dies after step `last`, or in the checkpoint of that step.
int work(int last) {
  for (State state = load(); state.step < steps;) {
    train(state);
    const bool dies = state.step == last, saves = state.step % checkpoint_every == 0;
    if (saves && !save(state, dies)) return std::perror("resume: resume.checkpoint"), 1;
    if (dies) ::raise(SIGKILL);
  }
  return 0;
}

int main() {
  State undisturbed;
  while (undisturbed.step < steps) train(undisturbed);
  std::printf("undisturbed: %d steps, y = %.6f x + %.6f\n", steps, undisturbed.weight, undisturbed.bias);

  std::remove(file);
  std::int64_t computed = 0;
  constexpr int dies_after[] = {37, 70, steps + 1};
  for (int attempt = 0; attempt < 3; ++attempt) {
    const std::int64_t first = load().step;
    std::fflush(stdout);  // else the child has it, too
    const pid_t child = ::fork();
    if (child < 0) return std::perror("resume: fork"), 1;
    if (child == 0) ::_exit(work(dies_after[attempt]));
    int status = 0;
    ::waitpid(child, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) != 0) return 1;
    const std::int64_t last = WIFSIGNALED(status) ? dies_after[attempt] : steps;
    std::printf("attempt %d: began after step %lld, ", attempt + 1, static_cast<long long>(first));
    if (WIFSIGNALED(status))
      std::printf("killed by signal %d in step %lld\n", WTERMSIG(status), static_cast<long long>(last));
    else
      std::printf("has ended\n");
    computed += last - first;
  }

  const State resumed = load();
  std::remove(file);
  std::remove("resume.checkpoint.new");
  // 7 steps are lost after step 37, and 10 in the checkpoint of step 70.
  const bool right = std::memcmp(&resumed, &undisturbed, sizeof resumed) == 0 && computed == steps + 7 + 10 &&
                     std::abs(resumed.weight - 3) < 0.1;
  std::printf("%s: y = %.6f x + %.6f, %lld steps computed\n", right ? "RIGHT" : "WRONG", resumed.weight, resumed.bias,
              static_cast<long long>(computed));
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("resume: standard output"), 1;
  return right ? 0 : 1;
}
