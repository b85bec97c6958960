// Shapes and workspace of attention on a GPU, ours and cuDNN's: what a plan needs to know of them without library or GPU.
#pragma once
#include <algorithm>

#include "kernels/attention/passes.hpp"

namespace tessera::kernels::cuda {

enum class AttentionPass : std::uint8_t { forward, backward };

/// Stops where the shape makes no sense or exceeds what the kernels are compiled for.
void check_shape(const AttentionShape& shape);
void check_shape(const AttentionBlock& block);

/// Head dims that Hopper's asynchronous products have.
constexpr bool warpgroup_head_dim(std::int64_t D) { return D > 32 && D <= 128; }
constexpr std::int64_t padded_rows(std::int64_t queries) { return round_up(queries, 128); }
/// Whether Hopper's backward pass has parts of dK and dV to add.
constexpr bool has_parts(const AttentionShape& s) {
  return size_of(s.dtype) == 2 && warpgroup_head_dim(s.D) && s.value_dim() == s.D && s.G < s.H;
}
/// How many lanes share a row of D elements, eight each: a power of two.
constexpr int lanes_of_row(std::int64_t D) {
  int lanes = 1;
  while (8 * lanes < D) lanes *= 2;
  return lanes;
}
/// Of a pass over so many queries and keys of each sequence.
std::size_t native_backward_workspace_bytes(const AttentionShape& shape, std::int64_t queries, std::int64_t keys);

/// A decoded token's blocks take pieces of the cache: groups of lanes_of_row(D) threads have four tokens each.
inline constexpr int tokens_of_thread = 4;
constexpr int groups_of_piece(std::int64_t D) { return std::max(16, 32 / lanes_of_row(D)); }
/// Of keys and values: lanes share rows of both.
constexpr std::int64_t wider_dim(const AttentionShape& s) { return std::max(s.D, s.value_dim()); }
/// As many as a token sees something of: a window begins anywhere in a piece.
constexpr std::int64_t decode_pieces_of(const AttentionDecode& a) {
  const std::int64_t tokens = std::int64_t{tokens_of_thread} * groups_of_piece(wider_dim(a.shape));
  return holds_a_window(a) ? ceil_div(a.shape.window - 1, tokens) + 1 : ceil_div(a.capacity, tokens);
}

/// Bytes of workspace that cuDNN's pass may take of this shape: of the frontend's own tensors, and of the engine; one that needs more is
/// not used. Follows what cuDNN 9.19 asks of an H200 and of an A100 (validation/kernels/cudnn_support_test.cpp asks it).
struct CudnnWorkspace {
  std::int64_t frontend = 0, engine = 0;
  std::int64_t bytes() const { return frontend + engine; }
};
CudnnWorkspace cudnn_workspace(const AttentionShape& shape, AttentionPass pass);

}  // namespace tessera::kernels::cuda
