#include "kernels/attention/attention_sizes.hpp"

#include "base/check.hpp"

namespace tessera::kernels::cuda {
namespace {

/// Beside the workspace of the frontend's own intermediate tensors: a few descriptors.
constexpr std::int64_t engine_bytes = 256;

std::size_t workspace_bytes(const AttentionShape& s, AttentionPass pass) {
  check_shape(s);
  const std::size_t native = pass == AttentionPass::forward ? 0 : native_backward_workspace_bytes(s, s.T, s.T);
  if (s.path == AttentionPath::native || s.dtype == DType::f32 || s.value_dim() != s.D) return native;
  return std::max(native, static_cast<std::size_t>(cudnn_workspace(s, pass).bytes()));
}

}  // namespace

void check_shape(const AttentionShape& s) {
  const auto has = [](std::int64_t width) { return width > 0 && width % 2 == 0 && width <= 256; };
  const bool sensible = s.G > 0 && s.H % s.G == 0 && s.B >= 0 && s.T >= 0 && s.window >= 0;
  TESSERA_REQUIRE(sensible && has(s.D) && has(s.value_dim()) && s.B < 65536 && s.T < (1 << 30),
                  "attention of B={} T={} H={} G={} D={} Dv={} on a GPU, whose heads end at 256 features", s.B, s.T, s.H, s.G, s.D,
                  s.value_dim());
  TESSERA_REQUIRE(has_scores(s), "attention with scale {} and softcap {}", s.scale, s.softcap);
  TESSERA_REQUIRE(is_float(s.dtype), "attention of {}", name_of(s.dtype));
}

void check_shape(const AttentionBlock& b) {
  check_shape(b.shape);
  TESSERA_REQUIRE(makes_sense(b), "an attention block of {} queries from {} and {} keys from {}, of {} tokens", b.queries.count,
                  b.queries.first, b.keys.count, b.keys.first, b.shape.T);
}

std::size_t native_backward_workspace_bytes(const AttentionShape& s, std::int64_t queries, std::int64_t keys) {
  const std::int64_t parts = has_parts(s) ? 2 * s.B * s.H * keys * s.D : 0;
  return static_cast<std::size_t>(2 * s.B * s.H * padded_rows(queries) + parts) * sizeof(float);
}

CudnnWorkspace cudnn_workspace(const AttentionShape& s, AttentionPass pass) {
  if (pass == AttentionPass::forward) return {0, engine_bytes};
  const std::int64_t rows = s.B * s.H * s.T, padded = s.B * s.H * round_up(s.T, 64) * s.D;
  // Row sums of d_out * out. Then either a sum of dQ in fp32, and on GPUs before Hopper dK and dV of every query head; or, where the order
  // of sums is fixed, dP of all pairs of tokens. With grouped queries dK and dV of every query head come on top.
  const std::int64_t grouped = s.G < s.H ? 4 * padded : 0;
  if (s.deterministic) return {4 * rows, engine_bytes + grouped + 2 * s.B * s.H * round_up(s.T, 64) * round_up(s.T, 64)};
  return {4 * rows + 4 * rows * s.D, engine_bytes + grouped + 4 * padded};
}

std::size_t attention_forward_workspace_bytes(const AttentionShape& s) { return workspace_bytes(s, AttentionPass::forward); }
std::size_t attention_backward_workspace_bytes(const AttentionShape& s) { return workspace_bytes(s, AttentionPass::backward); }

std::size_t attention_block_forward_workspace_bytes(const AttentionBlock& b) {
  check_shape(b);
  return 0;
}
std::size_t attention_block_backward_workspace_bytes(const AttentionBlock& b) {
  check_shape(b);
  return native_backward_workspace_bytes(b.shape, b.queries.count, b.keys.count);
}

std::size_t attention_decode_workspace_bytes(const AttentionDecode& a) {
  check_shape(a.shape);
  return static_cast<std::size_t>(a.shape.B * a.shape.H * decode_pieces_of(a) * (a.shape.value_dim() + 2)) * sizeof(float);
}

}  // namespace tessera::kernels::cuda
