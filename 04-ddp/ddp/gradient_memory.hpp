// gradient_memory.hpp: what a reducer does to gradients beside reducing them, in the memory that they lie in.
#pragma once

#include <cstddef>
#include <span>

namespace ddp {

// Of gradients in a GPU's memory: everything goes on the stream that the communicator was given (set_stream), and
// nothing waits for it on the host.
template <class T>
class GradientMemory {
 public:
  virtual ~GradientMemory() = default;

  // Multiplies each element by `factor`.
  virtual void scale(std::span<T> elements, T factor) = 0;
};

}  // namespace ddp
