// program_options.hpp: Boost.Program_options. Its templates for the usual types of options are compiled once, in
// program_options.cpp, which saves more than a second per file that has options.
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <boost/program_options.hpp>

#include <cstdint>
#include <optional>
#include <string>

namespace multinode {
// The value of an option without a default: `target` is null unless the option is given.
template <class T>
auto* given(std::optional<T>& target) {
  return boost::program_options::value<T>()->notifier([&target](const T& value) { target = value; });
}
}  // namespace multinode

extern template class boost::program_options::typed_value<int>;
extern template class boost::program_options::typed_value<double>;
extern template class boost::program_options::typed_value<std::int64_t>;
extern template class boost::program_options::typed_value<std::uint64_t>;
extern template class boost::program_options::typed_value<std::string>;
