// progress.hpp: how training shows where it is: a bar on a terminal, plain lines in a file or a pipe.
#pragma once

#include <cstddef>
#include <string>

class Progress {
 public:
  explicit Progress(bool talk);  // false: a rank that prints nothing
  ~Progress();                   // leaves the cursor on a line of its own
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // "epoch 1 step 200 of 469" and `rest` behind it: a line of its own if there is no terminal, and `as_line`.
  void step(std::size_t epoch, std::size_t step, std::size_t steps, const std::string& rest, bool as_line);
  // A line that stays.
  void line(const std::string& text);

  bool bar() const { return columns_ > 0; }

 private:
  bool talk_;
  std::size_t columns_;  // of the terminal; 0: standard output is none
  bool open_ = false;    // the bar stands in the last line
};
