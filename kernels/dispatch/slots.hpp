// Where a row's weight stands.
#pragma once
#include "kernels/dispatch/dispatch.hpp"

namespace tessera::kernels {

/// In (M,slots); -1: the row is nobody's.
TESSERA_BOTH inline std::int64_t slot_of(const WeighRows& p, std::int64_t row) {
  if (!p.sources) return (row + 1) * p.slots - 1;
  const std::int64_t choice = p.sources[row];
  return choice < 0 ? -1 : choice / p.k * p.slots + choice % p.k;
}

}  // namespace tessera::kernels
