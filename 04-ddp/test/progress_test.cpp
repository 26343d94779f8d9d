// What training shows on a terminal, and on one without a size (mpirun gives its processes such).
#include "progress.hpp"

#include <gtest/gtest.h>

#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <iostream>
#include <string>

namespace progress_test {

void show() {
  Progress progress(true);
  progress.step(1, 100, 400, ": loss 0.9000", true);
  progress.step(1, 150, 400, ": loss 0.8000", false);
  progress.line("epoch 1: done");
  progress.step(2, 400, 400, ": loss 0.7000", true);
}

std::string on_a_terminal(unsigned short columns) {
  std::cout << std::flush;
  winsize size{};
  size.ws_row = columns ? 24 : 0;
  size.ws_col = columns;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child == 0) {
    show();
    std::cout << std::flush;
    _exit(0);
  }
  std::string text;
  char bytes[4096];
  for (ssize_t n; (n = read(terminal, bytes, sizeof bytes)) > 0;) text.append(bytes, static_cast<std::size_t>(n));
  close(terminal);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return text;
}

TEST(Progress, IsABarOnATerminal) {
  EXPECT_EQ(on_a_terminal(80),
            "\r\x1b[K[##########..............................] epoch 1 step 100 of 400: loss 0.9000"
            "\r\x1b[K[###############.........................] epoch 1 step 150 of 400: loss 0.8000"
            "\r\x1b[Kepoch 1: done\r\n"
            "\r\x1b[K[########################################] epoch 2 step 400 of 400: loss 0.7000\r\n");
}

TEST(Progress, IsLinesOnATerminalWithoutASize) {
  EXPECT_EQ(on_a_terminal(0),
            "epoch 1 step 100 of 400: loss 0.9000\r\nepoch 1: done\r\nepoch 2 step 400 of 400: loss 0.7000\r\n");
}

}  // namespace progress_test
