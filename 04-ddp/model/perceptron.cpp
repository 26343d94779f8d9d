#include "perceptron.hpp"

namespace model {

template class PerceptronOn<float, float, Cpu>;
template class PerceptronOn<double, double, Cpu>;

}  // namespace model
