// hooks.hpp: what a reducer can be given to do beside reducing: look at a gradient before it is sent, and send it in
// another form.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <multinode/communicator.hpp>

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace ddp {

// Starts to sum a block over all ranks, in place. The sum is divided by `divisor` afterwards. `name` ("all_reduce of
// bucket 3") is for the watchdog, and outlives everything.
using AllReduce = std::function<multinode::Work(multinode::Block block, std::size_t divisor, const char* name)>;
// Returns what is called in place of the communicator's all-reduce, and calls it.
using AllReduceHook = std::function<AllReduce(AllReduce)>;

// Throws std::runtime_error that names the first element of `what`, of float or double, that is NaN or infinite.
void require_finite(const std::string& what, multinode::Block block);

// What gradients travel as. A 16-bit type halves the bytes.
enum class Compression { none, float16, bfloat16 };
Compression parse_compression(std::string_view name);  // of --compression, by these names; throws UsageError

// An AllReduceHook for blocks of float and double in host memory that stay where they are; none: null. Its Work throws
// std::runtime_error, naming the bucket, for a sum that is not finite in that type.
AllReduceHook compressed(Compression type);

// What that costs in precision: the mean gradient g over `ranks` ranks is wrong by at most relative * mean|g| +
// absolute, where mean|g| is the sum over the ranks of |g|, divided by the divisor. hooks.cpp derives it.
struct ErrorBound {
  double relative = 0, absolute = 0;
};
ErrorBound error_bound(Compression type, int ranks);

}  // namespace ddp
