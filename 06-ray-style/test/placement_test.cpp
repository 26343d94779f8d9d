#include "control-plane/placement.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

namespace placement_test {

using namespace cluster;
using Counts = std::vector<int>;

Job job_of(int workers, int gpus = 0, Placement placement = PACK) {
  Job job;
  job.set_num_workers(workers);
  job.set_gpus_per_worker(gpus);
  job.set_placement(placement);
  return job;
}

TEST(Placement, IsAllOrNothingPacksTheLastNodeBestAndSpreadsInTurn) {
  struct Case {
    std::vector<Slots> free;
    Job job;
    Counts counts;
  };
  for (const auto& [free, job, counts] : {
           Case{{}, job_of(1), {}},
           {{{2, 0}, {1, 0}}, job_of(4), {}},
           {{{2, 0}, {1, 0}}, job_of(3), {2, 1}},
           {{{4, 0}, {8, 0}, {2, 0}}, job_of(8), {0, 8, 0}},
           {{{4, 0}, {8, 0}, {2, 0}}, job_of(2), {0, 0, 2}},
           {{{4, 0}, {8, 0}, {2, 0}}, job_of(10), {0, 8, 2}},
           {{{4, 0}, {8, 0}, {4, 0}}, job_of(11), {3, 8, 0}},
           {{{4, 0}, {4, 0}, {4, 0}}, job_of(3), {3, 0, 0}},
           {{{8, 1}, {8, 4}}, job_of(2, 2), {0, 2}},
           {{{8, 3}, {8, 3}}, job_of(3, 2), {}},
           {{{8, 0}, {8, 0}, {8, 0}}, job_of(4, 0, SPREAD), {2, 1, 1}},
           {{{1, 0}, {8, 0}, {0, 0}, {8, 0}}, job_of(7, 0, SPREAD), {1, 3, 0, 3}},
           {{{8, 4}, {1, 4}}, job_of(3, 2, SPREAD), {2, 1}},
       })
    EXPECT_EQ(place(job, free), counts) << job.ShortDebugString();
}

// Against what the words say, by trying everything.
TEST(Placement, HoldsForRandomClusters) {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) { return std::uniform_int_distribution(low, high)(random); };
  int placed = 0;
  for (int round = 0; round < 3000; ++round) {
    std::vector<Slots> free(static_cast<std::size_t>(pick(0, 6)));
    for (Slots& node : free) node = {pick(0, 6), pick(0, 4)};
    const int gpus = pick(0, 2);
    const int workers = pick(1, 12);
    Counts rooms;
    for (const Slots& node : free) rooms.push_back(gpus ? std::min(node.cpus, node.gpus / gpus) : node.cpus);
    const bool fits = std::accumulate(rooms.begin(), rooms.end(), 0) >= workers;
    std::size_t fewest = 99;
    for (unsigned set = 0; set < 1u << free.size(); ++set) {
      int room = 0;
      std::size_t nodes = 0;
      for (std::size_t node = 0; node < free.size(); ++node)
        if (set & 1u << node) room += rooms[node], ++nodes;
      if (room >= workers) fewest = std::min(fewest, nodes);
    }
    for (const Placement how : {PACK, SPREAD}) {
      const Counts counts = place(job_of(workers, gpus, how), free);
      ASSERT_EQ(counts.empty(), !fits);
      if (!fits) continue;
      ++placed;
      ASSERT_EQ(counts.size(), free.size());
      EXPECT_EQ(std::accumulate(counts.begin(), counts.end(), 0), workers);
      for (std::size_t node = 0; node < free.size(); ++node) {
        EXPECT_LE(counts[node], rooms[node]);
        if (how == SPREAD && counts[node] < rooms[node]) {  // it could have taken one from a fuller node
          EXPECT_LE(*std::max_element(counts.begin(), counts.end()), counts[node] + 1);
        }
      }
      if (how == PACK) {
        EXPECT_EQ(counts.size() - static_cast<std::size_t>(std::count(counts.begin(), counts.end(), 0)), fewest);
      }
    }
  }
  EXPECT_GT(placed, 1000);
}

TEST(Placement, SaysWhyNot) {
  using Nodes = std::vector<Slots>;
  const auto why = [](const Nodes& free, const Nodes& all, int workers, int gpus) {
    return why_not(job_of(workers, gpus), free, all);
  };
  EXPECT_EQ(why({}, {}, 1, 0), "the cluster has no nodes");
  EXPECT_EQ(why({{4, 0}, {2, 0}}, {{4, 0}, {4, 0}}, 8, 0), "8 workers want 8 CPUs, 6 of 8 are free");
  EXPECT_EQ(why({{0, 0}, {1, 0}}, {{4, 0}, {4, 0}}, 4, 0), "4 workers want 4 CPUs, 1 of 8 is free");
  EXPECT_EQ(why({{4, 0}, {2, 0}}, {{4, 0}, {2, 0}}, 8, 0), "8 workers want 8 CPUs, the cluster has only 6");
  EXPECT_EQ(why({{1, 0}}, {{1, 0}}, 1, 1), "1 worker wants 1 GPU, the cluster has none");
  EXPECT_EQ(why({{8, 1}, {8, 1}}, {{8, 2}, {8, 2}}, 2, 2), "2 workers want 4 GPUs, 2 of 4 are free");
  EXPECT_EQ(why({{8, 3}, {8, 3}}, {{8, 3}, {8, 3}}, 3, 2),
            "each worker wants 1 CPU and 2 GPUs on one node: there is room for 2 of 3");
}

}  // namespace placement_test
