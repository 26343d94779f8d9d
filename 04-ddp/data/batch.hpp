// batch.hpp: some samples of a data set, side by side: what a rank works on in a step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace data {

template <class T>
struct Batch {
  std::vector<T> inputs;               // size() x features, row by row
  std::vector<T> targets;              // size() x outputs: what the outputs shall be; empty where labels say it
  std::vector<std::uint8_t> labels;    // size(): each sample's class; empty where targets say it
  std::vector<std::uint32_t> samples;  // size(): their numbers in the data set
  std::size_t size() const { return samples.size(); }
};

}  // namespace data
