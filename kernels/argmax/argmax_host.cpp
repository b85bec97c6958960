#include "kernels/argmax/argmax.hpp"

#include <algorithm>

#include "base/check.hpp"
#include "kernels/argmax/maxima_host.hpp"

namespace tessera::kernels::host {

void argmax(const Context&, const Argmax& p) {
  TESSERA_REQUIRE(p.n > 0 && p.n <= 1 << 30, "argmax of {}", p.n);
  constexpr std::int64_t block = 4096;  // only the one with the largest is searched for its place
  std::int64_t first = -1;
  float largest = -std::numeric_limits<float>::infinity();
  *p.index = -1;
  for (std::int64_t begin = 0; begin < p.n; begin += block) {
    const Maxima maxima = maxima_of(p.x + begin, std::min(block, p.n - begin));
    if (maxima.nan) return;
    if (const float of_block = maxima.largest(); of_block > largest) largest = of_block, first = begin;
  }
  if (first < 0) return;
  while (p.x[first] != largest) ++first;
  *p.index = static_cast<std::int32_t>(first);
}

}  // namespace tessera::kernels::host
