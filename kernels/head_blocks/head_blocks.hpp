// What context-parallel ranks exchange around attention (Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509): rows of all heads, of some
// tokens, become blocks for each rank's heads, and blocks of each rank's heads become rows of all. Copies: the same bits.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// A row of W = (H + 2 G) D elements is [H query heads | G key heads | G value heads], of which rank n of N has the n-th part of each kind:
/// its row of W / N is [H/N | G/N | G/N]. Of a context, G is 0.
struct HeadBlocks {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t B = 0, T = 0;  ///< sequences, and tokens of each
  std::int64_t N = 0;         ///< ranks; divides H and G
  std::int64_t H = 0, G = 0, D = 0;
  DType dtype = DType::f32;
};
/// to (B,N,T,W/N) from rows (B*T,W).
TESSERA_OP(rows_to_head_blocks, (const Context& context, const HeadBlocks& arguments), (context, arguments))
/// to (B*T,W) from blocks (B,N,T,W/N).
TESSERA_OP(head_blocks_to_rows, (const Context& context, const HeadBlocks& arguments), (context, arguments))

}  // namespace tessera::kernels
