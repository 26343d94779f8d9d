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

  struct Move {
    std::size_t from = 0, to = 0, count = 0;  // elements
  };
  // Moves pieces of the storage, all at once. Together they are the whole of it, before and after.
  virtual void move(std::span<T> storage, std::span<const Move> moves) = 0;
};

}  // namespace ddp
