// SPDX-License-Identifier: Apache-2.0
#include "perceptron.hpp"

namespace model {

template class PerceptronOn<float, Cpu>;
template class PerceptronOn<double, Cpu>;

}  // namespace model
