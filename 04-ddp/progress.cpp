#include "progress.hpp"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <iostream>

namespace {

// mpirun gives each process a terminal without a size.
std::size_t terminal_columns() {
  winsize size{};
  return isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

}  // namespace

Progress::Progress(bool talk) : talk_(talk), columns_(talk ? terminal_columns() : 0) {}

Progress::~Progress() {
  if (open_) std::cout << std::endl;
}

void Progress::step(std::size_t epoch, std::size_t step, std::size_t steps, const std::string& rest, bool as_line) {
  if (!talk_) return;
  const std::string text =
      "epoch " + std::to_string(epoch) + " step " + std::to_string(step) + " of " + std::to_string(steps) + rest;
  if (!bar()) {
    if (as_line) std::cout << text << std::endl;
    return;
  }
  const std::size_t room = columns_ > text.size() + 4 ? std::min<std::size_t>(columns_ - text.size() - 4, 40) : 0;
  const std::size_t full = room * step / steps;
  std::string shown = "[" + std::string(full, '#') + std::string(room - full, '.') + "] " + text;
  shown.resize(std::min(shown.size(), columns_ - 1));  // a longer line would wrap, and could not be overwritten
  std::cout << "\r\x1b[K" << shown << std::flush;
  open_ = true;
}

void Progress::line(const std::string& text) {
  if (!talk_) return;
  if (open_) std::cout << "\r\x1b[K";
  open_ = false;
  std::cout << text << std::endl;
}
