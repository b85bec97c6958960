// Bound by memory: one pass.
#include "kernels/cross_entropy/logit_map.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {

void map_logits(const Context&, float* x, std::int64_t n, const LogitMap& map) {
  if (map == LogitMap{}) return;
  const logit_map::Constants constants(map);
  parallel_ranges(n, 16384, [&](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end,
                [&](std::int64_t i, auto count) { store(x + i, logit_map::mapped(load(x + i, count), constants).value, count); });
  });
}

}  // namespace tessera::kernels::host
