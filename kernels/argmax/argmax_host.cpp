#include "kernels/argmax/argmax.hpp"

#include <limits>

#include "base/check.hpp"

namespace tessera::kernels::host {

void argmax(const Context&, const Argmax& p) {
  TESSERA_REQUIRE(p.n > 0 && p.n <= 1 << 30, "argmax of {}", p.n);
  std::int64_t best = 0;
  float largest = -std::numeric_limits<float>::infinity();
  for (std::int64_t i = 0; i < p.n; ++i)
    if (p.x[i] > largest) largest = p.x[i], best = i;
  *p.index = static_cast<std::int32_t>(best);
}

}  // namespace tessera::kernels::host
