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

/// Tokens of a chunk of logits where the deck says auto.
/// On the host a chunk of about 32 MiB of fp32 keeps the products large and the chunk inside the last-level cache.
/// On a GPU each chunk moves the head's gradient twice and its weight twice, 12 bytes an element beside 6 floating-point operations a
/// token: that is small from some 2000 tokens on. Chunks are made equal.
std::int64_t loss_chunk(const ModelShape& s) {
  const std::int64_t row = 4 * s.V;  // bytes
  if (s.backend == kernels::Backend::host) return std::clamp<std::int64_t>((std::int64_t{32} << 20) / row, 64, 4096);
  const std::int64_t most = std::clamp<std::int64_t>((std::int64_t{512} << 20) / row, 2048, 8192);
  return round_up(ceil_div(s.tokens(), ceil_div(s.tokens(), most)), std::int64_t{128});
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
  s.loss_chunk = std::min(s.loss_chunk == 0 ? loss_chunk(s) : s.loss_chunk, s.tokens());
  return s;
}

ModelShape text_shape(const ModelShape& shape, const TextSize& text, Feed feed) {
  ModelShape s = shape;
  s.B = 1, s.T = feed == Feed::prompt ? text.prompt : 1;
  s.feed = feed, s.capacity = text.capacity, s.likeliest = text.likeliest;
  s.pack_weights = false;                        // for products of many rows
  s.attention = kernels::AttentionPath::native;  // no search comes before a text
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
