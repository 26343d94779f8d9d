// A program saves its settings now and then. It was killed while it did, and the file has half of them. Whenever it is
// killed, the file must have the old settings or the new ones, and all of them.
//
//   g++ -std=c++20 -O2 whole_file.cpp -o whole_file
//   ./whole_file
//
// Exit status: 0 if the file is always whole, 1 if not.
// After: resume.cpp.
// SPDX-License-Identifier: Apache-2.0
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <string>

// Writes a text, and kills its process after so many bytes.
struct Writer {
  std::size_t dies_after;
  void operator()(std::FILE* out, const std::string& text) const {
    for (std::size_t i = 0; i <= text.size(); ++i) {
      if (i == dies_after) std::fflush(out), ::raise(SIGKILL);
      if (i < text.size()) std::fputc(text[i], out);
    }
  }
};

// TODO (exercise): whenever `write` kills this process, the file must be whole.
bool save(const std::string& path, const std::string& text, const Writer& write) {
  std::FILE* const out = std::fopen(path.c_str(), "w");
  if (!out) return false;
  write(out, text);
  return std::fclose(out) == 0;
}

std::string content(const std::string& path) {
  std::string text(1000, '\0');
  std::FILE* const in = std::fopen(path.c_str(), "r");
  text.resize(in ? std::fread(text.data(), 1, text.size(), in) : 0);
  if (in) std::fclose(in);
  return text;
}

int main() {
  const std::string path = "settings.txt", before = "rate 0.1\nbatch 64\n", after = "rate 0.05\nbatch 128\n";
  int broken = 0, saved = 0;
  for (std::size_t bytes = 0; bytes <= after.size() + 1; ++bytes) {  // the last time, it is not killed
    if (!save(path, before, {1000})) return std::perror("whole_file: settings.txt"), 1;
    const pid_t child = ::fork();
    if (child < 0) return std::perror("whole_file: fork"), 1;
    if (child == 0) ::_exit(save(path, after, {bytes}) ? 0 : 1);
    int status = 0;
    ::waitpid(child, &status, 0);
    const std::string found = content(path);
    broken += found != before && found != after;
    saved += found == after && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  std::remove(path.c_str());
  const bool right = broken == 0 && saved == 1;
  std::printf("%s: killed after each byte, it left %d broken files; not killed, it saved %d time\n",
              right ? "RIGHT" : "WRONG", broken, saved);
  if (std::fflush(stdout) || std::ferror(stdout)) return std::perror("whole_file: standard output"), 1;
  return right ? 0 : 1;
}
