// Where a row lies, and where its weight stands.
#pragma once
#include "kernels/dispatch/dispatch.hpp"

namespace tessera::kernels {

/// The first row of an expert: `offsets` count rows as without blocks.
TESSERA_BOTH inline std::int64_t first_row(const PlanDispatch& p, std::int64_t expert) {
  const std::int64_t of_block = p.E / p.blocks, block = expert / of_block;
  return block * (p.rows / p.blocks) + p.offsets[expert] - p.offsets[block * of_block];
}

/// Whether a row is nobody's.
TESSERA_BOTH inline bool is_empty(const PlanDispatch& p, std::int64_t row) {
  const std::int64_t of_block = p.E / p.blocks, rows = p.rows / p.blocks, block = row / rows;
  return row % rows >= p.offsets[(block + 1) * of_block] - p.offsets[block * of_block];
}

/// In (M,slots); -1: the row is nobody's.
TESSERA_BOTH inline std::int64_t slot_of(const WeighRows& p, std::int64_t row) {
  if (!p.sources) return (row + 1) * p.slots - 1;
  const std::int64_t choice = p.sources[row];
  return choice < 0 ? -1 : choice / p.k * p.slots + choice % p.k;
}

}  // namespace tessera::kernels
