// run.hpp: runs the checks of a suite within its budget, whatever they do.
#pragma once

#include "site.hpp"

#include <functional>
#include <ostream>

namespace boost::program_options {
class options_description;
}

namespace image_check {

struct RunOptions {
  Suite suite = Suite::smoke;
  ClusterOptions cluster;
  std::filesystem::path site;  // file of the site; "": none
  std::filesystem::path folder = "image-check";
  std::vector<std::string> only;      // names of checks; none: all of the suite
  std::vector<std::string> required;  // what must not be skipped; "all": nothing
  int launches = 1;                   // of all checks; with more than 1, only checks that measure run
  double budget = 0;                  // seconds; 0: the suite's for each launch
  std::string command;                // that was given, for the head
  // Of the self-test:
  Command wrapper;      // before each program
  Command words;        // after each program's own
  Variables variables;  // for each program
  bool retry = true;    // a failed check, to see whether it is flaky
  double limit = 0;     // seconds for each check; 0: its own
};

// Options --suite, --hosts, --launcher ... and what to do with them. The strings given are UsageErrors'.
struct RunDescription {
  RunOptions options;
  std::string suite = "smoke", hosts;
  boost::program_options::options_description where();        // on which nodes, and how
  boost::program_options::options_description description();  // all
  void read();
};

// Writes the plan and a line a check to `out`; results.jsonl and the logs into the folder. Ends early, with the rest
// not run, after SIGINT or SIGTERM. Throws multinode::UsageError for what cannot be started at all.
Results run_checks(const RunOptions& options, std::ostream& out);

}  // namespace image_check
