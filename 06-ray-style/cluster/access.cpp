#include "cluster/access.hpp"

#include "cluster/state_folder.hpp"
#include "cluster/token.hpp"

#include <multinode/program_options.hpp>

namespace cluster {

namespace po = boost::program_options;

po::options_description AccessOptions::description() {
  po::options_description known("Which cluster");
  known.add_options()("address", po::value(&address),
                      "HOST:PORT of the head; default: what 'cluster start --head' wrote into the state folder")(
      "state", po::value(&state)->default_value(StateFolder::default_path()),
      "folder that holds the cluster's token and address");
  return known;
}

Access AccessOptions::read() const {
  const StateFolder folder(state);
  return {address.empty() ? folder.read_address() : multinode::parse_endpoint(address, "--address"),
          read_token(folder.token())};
}

}  // namespace cluster
