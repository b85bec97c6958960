// Where the weight of a row stands that has an expert.
#pragma once
#include "kernels/dispatch/slots.hpp"
#include "kernels/expert_bias/expert_bias.hpp"

namespace tessera::kernels {

/// In (M,slots); -1: nowhere. P has k, slots and sources.
template <class P>
TESSERA_BOTH inline std::int64_t bias_slot(const P& p, std::int64_t row) {
  return slot_of(WeighRows{.sources = p.sources, .k = p.k, .slots = p.slots}, row);
}
/// What a row counts by.
TESSERA_BOTH inline float bias_weight(const ExpertBiasGradient& p, std::int64_t row) {
  if (!p.weights) return 1;
  const std::int64_t slot = bias_slot(p, row);
  return slot < 0 ? 0 : p.weights[slot];
}

}  // namespace tessera::kernels
