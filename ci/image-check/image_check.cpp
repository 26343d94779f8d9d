// image-check: does this image of a cluster work, is it right, is it as fast as it was?
// Exit status: 0 right, 1 something failed, 2 bad command line, 3 could not test, 77 hardware absent.
#include "run.hpp"

#include <multinode/check.hpp>
#include <multinode/options.hpp>

#include <iostream>

namespace {
using namespace image_check;

int run(int argc, char** argv) {
  RunDescription run;
  if (!multinode::parse_command_line(argc, argv, run.description(), true)) return multinode::exit_right;
  run.read();
  for (int i = 0; i < argc; ++i) run.options.command += (i ? " " : "image-check ") + std::string(argv[i]);
  return run_checks(run.options, std::cout).summary.exit_status;
}
}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc - 1, argv + 1);
  } catch (const multinode::UsageError& error) {
    std::cerr << std::string("image-check: ") + error.what() + "\n";
    return multinode::exit_usage;
  } catch (const std::exception& error) {
    std::cerr << std::string("image-check: ") + error.what() + "\n";
    return 3;
  }
}
