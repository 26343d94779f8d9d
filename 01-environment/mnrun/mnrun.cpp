// mnrun: starts and supervises the processes of this node, and with the mnruns of other nodes a whole run. Exit status,
// the same on all nodes: that of the process that failed first (128 + N for signal N); 1 another node is missing or was
// lost; 2 bad command line; 126 the program cannot be executed; 127 it was not found.
#include <mnrun/supervisor.hpp>

#include <multinode/check.hpp>

#include <fcntl.h>

#include <iostream>

int mnrun_main(int argc, char** argv) {
  for (int fd = 0; fd < 3; ++fd)  // otherwise a pipe would get the number of a closed one
    if (fcntl(fd, F_GETFD) < 0) open("/dev/null", O_RDWR);
  try {
    const auto options = mnrun::parse(argc, argv, multinode::current_environment());
    return options ? mnrun::supervise(*options) : multinode::exit_right;
  } catch (const multinode::UsageError& e) {
    std::cerr << std::string("mnrun: ") + e.what() + "\n";
    return multinode::exit_usage;
  } catch (const std::exception& e) {
    std::cerr << std::string("mnrun: ") + e.what() + "\n";
    return multinode::exit_wrong;
  }
}
