// SPDX-License-Identifier: Apache-2.0
#include <multinode/base/program_options.hpp>

template class boost::program_options::typed_value<int>;
template class boost::program_options::typed_value<double>;
template class boost::program_options::typed_value<std::int64_t>;
template class boost::program_options::typed_value<std::uint64_t>;
template class boost::program_options::typed_value<std::string>;
