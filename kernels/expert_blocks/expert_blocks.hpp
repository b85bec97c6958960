// Rows on their way to experts of other ranks and back. A rank sends each of N ranks a block of as many rows, most of them nobody's
// perhaps: those for its experts, expert by expert, as plan_dispatch leaves them in N blocks. What tells them apart goes beside them:
// labels.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// The blocks that ranks exchange, and the experts of each.
struct ExpertBlocks {
  std::int64_t N = 0;                                            ///< ranks
  std::int64_t E = 0;                                            ///< experts of a rank
  std::int64_t rows = 0;                                         ///< of a block
  TESSERA_BOTH std::int64_t labels() const { return E + rows; }  ///< of a block, four bytes each
};

/// labels (N,E+rows): of each block how many rows each of its experts has, int32, then what each row counts for, fp32; nobody's 0.
struct LabelBlocks {
  std::uint32_t* labels = nullptr;        ///< (N,E+rows)
  const std::int32_t* offsets = nullptr;  ///< (N E+1) of plan_dispatch
  const std::int32_t* sources = nullptr;  ///< (N rows) choices m k + j, or -1: nobody's
  const float* weights = nullptr;         ///< (M,slots), of which the first k are those of choices
  std::int64_t k = 0, slots = 0;
  ExpertBlocks blocks;
};
TESSERA_OP(label_blocks, (const Context& context, const LabelBlocks& arguments), (context, arguments))

/// Rows that have arrived are sorted by expert, of one expert by the rank that they come from, and of one rank as they came, which is by
/// token. Those of expert e then are offsets[e] to offsets[e + 1], and rows from offsets[E] on are nobody's.
struct PlanArrivals {
  std::int32_t* offsets = nullptr;        ///< (E+1)
  std::int32_t* order = nullptr;          ///< (N rows) of each sorted row the row of blocks that it is; -1: nobody's
  std::int32_t* places = nullptr;         ///< (N rows) of each row of blocks its sorted row; -1: nobody's
  float* weights = nullptr;               ///< (N rows) of each row of blocks what it counts for
  const std::uint32_t* labels = nullptr;  ///< (N,E+rows), a block of each rank
  ExpertBlocks blocks;
};
TESSERA_OP(plan_arrivals, (const Context& context, const PlanArrivals& arguments), (context, arguments))

/// What a number of each row comes to by choice: out of choice j of token m = that of its row, 0 where it was dropped.
struct CollectRows {
  float* out = nullptr;                  ///< (M,slots), of which the first k are written
  const float* rows = nullptr;           ///< one a row
  const std::int32_t* places = nullptr;  ///< (M,k) the row of each choice; -1: dropped
  std::int64_t M = 0, k = 0, slots = 0;
};
TESSERA_OP(collect_rows, (const Context& context, const CollectRows& arguments), (context, arguments))

}  // namespace tessera::kernels
