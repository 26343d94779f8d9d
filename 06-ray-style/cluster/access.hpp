// access.hpp: where the head is, and the token for it, as programs are told on their command lines.
#pragma once

#include <multinode/endpoint.hpp>

#include <string>

namespace boost::program_options {
class options_description;
}

namespace cluster {

struct Access {
  multinode::Endpoint head;
  std::string token;
};

struct AccessOptions {
  std::string address;  // --address HOST:PORT
  std::string state;    // --state DIR

  boost::program_options::options_description description();
  // From what was given and the files of the state folder. Throws UsageError, naming option or file.
  Access read() const;
};

}  // namespace cluster
