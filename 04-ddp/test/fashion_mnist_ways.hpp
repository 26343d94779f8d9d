// fashion_mnist_ways.hpp: the ways to start a program of this chapter that this build has.
#pragma once

#include <testing/faults.hpp>

#include <gtest/gtest.h>

#include <signal.h>

#include <cstdlib>
#include <string>
#include <vector>

using namespace multinode::testing;
using namespace std::chrono_literals;

struct Way {
  Starter starter;

  std::string name() const { return name_of(starter); }
  Ranks::End run(const std::string& program, int ranks, std::vector<std::string> options,
                 std::chrono::milliseconds timeout = patience) const {
    options.insert(options.begin(), program);
    return Ranks(starter, ranks, options).wait(timeout);
  }
};

inline std::vector<Way> ways() {
  std::vector<Way> all;
#ifdef MULTINODE_HAVE_MPI
  all.push_back({Starter::mpirun});
#endif
#ifdef MULTINODE_HAVE_GLOO
  all.push_back({Starter::bare});
#endif
#if defined(MULTINODE_HAVE_GLOO) && defined(PATH_mnrun)
  setenv("MNRUN", PATH_mnrun, 1);
  all.push_back({Starter::mnrun});
#endif
  return all;
}

// Without mnrun, which uses the same library as bare processes.
inline std::vector<Way> one_way_a_library() {
  std::vector<Way> some = ways();
  std::erase_if(some, [](const Way& way) { return way.starter == Starter::mnrun; });
  return some;
}

// For what does not depend on the way: mpirun takes a second to end what failed.
inline Way quickest_way() {
  for (const Way& way : ways())
    if (way.starter == Starter::bare) return way;
  return ways().front();
}

// All of these numbers of ranks in the quickest way, the last of them in the others.
inline std::vector<int> counts_for(const Way& way, std::vector<int> counts) {
  if (way.starter != quickest_way().starter) counts.erase(counts.begin(), counts.end() - 1);
  return counts;
}
