#include "model/shape.hpp"

#include <algorithm>

namespace tessera {
namespace {

/// Auto is ours where runs must be reproducible: which of two is faster differs from start to start.
kernels::AttentionPath attention_path(const Deck& deck) {
  using kernels::AttentionPath;
  if (deck.kernels.attention == "native") return AttentionPath::native;
  if (deck.kernels.attention == "cudnn") return AttentionPath::cudnn;
  return deck.run.reproducible ? AttentionPath::native : AttentionPath::fastest;
}

}  // namespace

ModelShape model_shape(const Deck& deck) {
  const ModelKeys& m = deck.model;
  ModelShape s{.B = deck.batch.micro,
               .T = deck.batch.sequence_length,
               .C = m.width,
               .H = m.heads,
               .G = m.kv_heads,
               .D = m.head_dim,
               .F = m.ff_width,
               .V = m.vocab,
               .L = m.layers,
               .dtype = deck.precision.compute,
               .backend = deck.run.device == "cuda" ? kernels::Backend::cuda : kernels::Backend::host,
               .norm_eps = static_cast<float>(m.norm_eps),
               .tied = m.tied,
               .qk_norm = m.qk_norm,
               .qkv_bias = m.qkv_bias,
               .loss_chunk = deck.kernels.loss_chunk,
               .pack_weights = deck.kernels.pack_weights,
               .attention = attention_path(deck),
               .deterministic = deck.run.reproducible};
  // Auto: a chunk of fp32 logits of about 32 MiB keeps the GEMM large and the chunk inside the last-level cache.
  if (s.loss_chunk == 0) s.loss_chunk = std::clamp<std::int64_t>((std::int64_t{32} << 20) / (4 * s.V), 64, 4096);
  s.loss_chunk = std::min(s.loss_chunk, s.tokens());
  return s;
}

kernels::AttentionShape attention_shape(const ModelShape& s) {
  return {.B = s.B, .T = s.T, .H = s.H, .G = s.G, .D = s.D, .dtype = s.dtype, .path = s.attention, .deterministic = s.deterministic};
}

FlopsPerToken flops_per_token(const ModelShape& s) {
  const double layer = static_cast<double>(s.C * s.qkv_width() + s.H * s.D * s.C + 3 * s.C * s.F);
  const double matrices = static_cast<double>(s.L) * layer + static_cast<double>(s.V * s.C);
  const double attention = 12.0 * static_cast<double>(s.L * s.H * s.D * s.T);
  return {6 * matrices + attention, 6 * matrices + attention / 2};
}

}  // namespace tessera
