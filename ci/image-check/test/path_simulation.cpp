// What find_path_faults() finds in simulated Clos networks, as a table.
// usage: path_simulation NODES CLUSTERS HEALTHY: so many clusters with each fault, and so many healthy ones
#include "clos.hpp"

#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <iostream>

int main(int argc, char** argv) {
  using namespace image_check;
  if (argc != 4) return std::cerr << "usage: path_simulation NODES CLUSTERS HEALTHY\n", 2;
  const std::size_t nodes = std::strtoul(argv[1], nullptr, 10);
  const int clusters = std::atoi(argv[2]), healthy = std::atoi(argv[3]);
  std::cout << "| nodes | fault | switches | noise | faults found | misnamed | \"cannot tell\" | rounds (all pairs: "
            << nodes - 1 + nodes % 2 << ") | ms |\n|---|---|---|---|---|---|---|---|---|\n";
  for (const char* fault :
       {"healthy", "oversubscribed", "node", "link", "uplink", "split", "path", "two nodes", "node + uplink"})
    for (const bool known : {true, false})
      for (const double noise : {0.02, 0.1}) {
        const int of = std::string(fault) == "healthy" || std::string(fault) == "oversubscribed" ? healthy : clusters;
        Clos::Score all;
        std::size_t rounds = 0;
        double seconds = 0;
        for (int i = 0; i < of; ++i) {
          Clos clos = Clos::with(nodes, fault, noise, static_cast<std::uint64_t>(i) + 1);
          const auto topology = known ? clos.topology() : one_switch(clos.names());
          const auto start = std::chrono::steady_clock::now();
          const auto result = find_path_faults(topology, std::ref(clos));
          seconds += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
          const auto score = clos.score(result);
          all.planted += score.planted, all.found += score.found;
          all.misnamed += score.misnamed, all.untold += score.untold;
          rounds += result.rounds;
        }
        std::cout << fmt::format("| {} | {} | {} | {:.0f} % | {} | {} | {} | {:.1f} | {:.1f} |\n", nodes, fault,
                                 known ? "known" : "unknown", 100 * noise,
                                 all.planted == 0 ? "-" : fmt::format("{} of {}", all.found, all.planted), all.misnamed,
                                 all.untold, static_cast<double>(rounds) / of, 1000 * seconds / of)
                  << std::flush;
      }
}
