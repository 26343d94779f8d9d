// For LD_PRELOAD with train_ddp on one rank: log1pf() that is NaN from its 1,601st call on. There is one for each row.
#include <cmath>

extern "C" float log1pf(float x) noexcept {
  static int calls = 0;
  return ++calls > 1600 ? NAN : static_cast<float>(std::log1p(static_cast<double>(x)));
}
