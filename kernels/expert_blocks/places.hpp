// What labels say, on the host and on a GPU.
#pragma once
#include "kernels/expert_blocks/expert_blocks.hpp"

namespace tessera::kernels::expert_blocks {

/// Rows of the block of rank n that are expert e's.
TESSERA_BOTH inline std::int32_t count_of(const PlanArrivals& p, std::int64_t n, std::int64_t e) {
  return static_cast<std::int32_t>(p.labels[n * p.blocks.labels() + e]);
}

/// The sorted row of row `row` of the block of rank n, by offsets; -1: nobody's.
TESSERA_BOTH inline std::int32_t place_of(const PlanArrivals& p, std::int64_t n, std::int64_t row) {
  auto left = static_cast<std::int32_t>(row);
  for (std::int64_t e = 0; e < p.blocks.E; ++e) {
    const std::int32_t count = count_of(p, n, e);
    if (left >= count) {
      left -= count;
      continue;
    }
    std::int32_t place = p.offsets[e] + left;
    for (std::int64_t before = 0; before < n; ++before) place += count_of(p, before, e);
    return place;
  }
  return -1;
}

/// In (M,slots), of a choice m k + j.
TESSERA_BOTH inline std::int64_t slot_of(std::int64_t choice, std::int64_t k, std::int64_t slots) {
  return choice / k * slots + choice % k;
}

}  // namespace tessera::kernels::expert_blocks
