// compare.hpp: image A against image B: what differs, and what became worse.
#pragma once

#include "cluster.hpp"
#include "results.hpp"
#include "statistics.hpp"

#include <functional>
#include <ostream>

namespace boost::program_options {
class options_description;
}

namespace image_check {

struct CompareOptions {
  std::filesystem::path a, b;  // folders: A is the baseline: a session, or a folder of sessions
  std::filesystem::path folder = "image-check-compare";
  std::string again_a, again_b;  // commands that are image-check in A and B; "": it cannot be asked again
  std::string launcher = "auto", hosts, examples, site;  // of fresh launches, as for run
  std::vector<std::string> required;                     // checks or metrics that must be compared; "all": all
  double loss = 100 * required_loss;                     // percent that a metric must see, else it is no evidence
  bool other_hardware = false, same_nodes = false;
  double timeout = 1800;  // seconds for each fresh launch
  std::string command;
  std::function<void(bool of_a, const std::filesystem::path&)>
      again{};  // of the self-test: runs A or B again into that folder
  boost::program_options::options_description description();
};

// A metric that looks worse is measured again: in fresh launches of A and B in turn. The result has a check for each
// metric and band, and those of B that failed. Throws multinode::UsageError for results that cannot be compared.
Results compare(const CompareOptions& options, std::ostream& out);

}  // namespace image_check
