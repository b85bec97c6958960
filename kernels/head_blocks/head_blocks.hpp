// What context-parallel ranks exchange around attention (Jacobs et al., DeepSpeed Ulysses, arXiv:2309.14509): rows of all heads, of some
// tokens, become blocks for each rank's heads, and blocks of each rank's heads become rows of all.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// A row of H D + G (D + Dv) elements is [H query heads | G key heads | G value heads], of which rank n of N has the n-th part of each
/// kind: its row of W elements is [H/N | G/N | G/N]. Of fewer key heads than ranks, N / G ranks have the same one: [H/N | 1 | 1]. Of a
/// context, G is 0 and D the width of its heads.
struct HeadBlocks {
  void* to = nullptr;
  const void* from = nullptr;
  std::int64_t B = 0, T = 0;                 ///< sequences, and tokens of each
  std::int64_t N = 0;                        ///< ranks; divides H, and divides or is a multiple of G
  std::int64_t H = 0, G = 0, D = 0, Dv = 0;  ///< Dv: features of a value head; 0: as D
  DType dtype = DType::f32;
};
/// to (B,N,T,W) from rows (B*T, H D + G (D + Dv)): copies.
TESSERA_OP(rows_to_head_blocks, (const Context& context, const HeadBlocks& arguments), (context, arguments))
/// to (B*T, H D + G (D + Dv)) from blocks (B,N,T,W): copies, and of a key or value head that several ranks have their sum, in fp32 and in
/// the order of the ranks.
TESSERA_OP(head_blocks_to_rows, (const Context& context, const HeadBlocks& arguments), (context, arguments))

}  // namespace tessera::kernels
