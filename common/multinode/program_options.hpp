// program_options.hpp: Boost.Program_options, whose templates for the usual types of options are compiled once, in
// program_options.cpp: they cost every file that has options more than a second.
#pragma once

#include <boost/program_options.hpp>

#include <cstdint>
#include <string>

extern template class boost::program_options::typed_value<int>;
extern template class boost::program_options::typed_value<double>;
extern template class boost::program_options::typed_value<std::int64_t>;
extern template class boost::program_options::typed_value<std::uint64_t>;
extern template class boost::program_options::typed_value<std::string>;
