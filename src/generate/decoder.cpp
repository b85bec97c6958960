#include "generate/decoder.hpp"

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "generate/sampling.hpp"
#include "kernels/argmax/argmax.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "model/linear.hpp"

namespace tessera {
namespace {

/// Buffers begin where cuBLASLt and vector loads like them best.
constexpr std::int64_t alignment = 256;

/// The products of a pass over `rows` tokens.
struct Products {
  linear::Dims qkv, out, gate_up, down;
  Products(const ModelShape& s, std::int64_t rows)
      : qkv{rows, s.qkv_width(), s.C, s.dtype},
        out{rows, s.C, s.H * s.D, s.dtype},
        gate_up{rows, 2 * s.F, s.C, s.dtype},
        down{rows, s.C, s.F, s.dtype} {}
};

/// Logits of one token, in fp32 whatever the compute type.
kernels::Gemm logits_product(const ModelShape& s, float* logits, const void* x, const void* weight) {
  kernels::Gemm product = linear::forward({1, s.V, s.C, s.dtype}, logits, x, {weight});
  product.out = DType::f32;
  return product;
}

kernels::AttentionShape attention_shape(const ModelShape& s, std::int64_t rows) {
  return {.B = 1, .T = rows, .H = s.H, .G = s.G, .D = s.D, .dtype = s.dtype};
}

std::int64_t floats(std::int64_t n) { return n * static_cast<std::int64_t>(sizeof(float)); }
/// Ids and positions of the tokens of a pass.
std::int64_t input_bytes(std::int64_t rows) { return 2 * rows * static_cast<std::int64_t>(sizeof(std::int32_t)); }

}  // namespace

/// Hands out a tier's bytes, one buffer after the other.
class Decoder::Places {
 public:
  explicit Places(std::uintptr_t base) : base_(base) {}
  template <class T = std::byte>
  T* take(std::int64_t bytes) {
    T* at = reinterpret_cast<T*>(base_ + static_cast<std::uintptr_t>(used_));
    used_ += round_up(bytes, alignment);
    return at;
  }
  std::int64_t used() const { return used_; }

 private:
  std::uintptr_t base_;
  std::int64_t used_ = 0;
};

ModelShape Decoder::shape_of(const Deck& deck) {
  ModelShape shape = model_shape(deck);
  shape.B = shape.T = 1;
  return shape;
}

std::size_t Decoder::workspace_bytes(const ModelShape& s, const DecoderSize& size) {
  std::size_t most = kernels::gemm_workspace_bytes(logits_product(s, nullptr, nullptr, nullptr), s.backend);
  const char present = 0;
  for (const std::int64_t rows : {std::int64_t{1}, size.prompt}) {
    const Products p(s, rows);
    most = std::max(
        most, kernels::gemm_workspace_bytes(linear::forward(p.qkv, nullptr, nullptr, {}, s.qkv_bias ? &present : nullptr), s.backend));
    for (const linear::Dims& dims : {p.out, p.gate_up, p.down})
      most = std::max(most, kernels::gemm_workspace_bytes(linear::forward(dims, nullptr, nullptr, {}), s.backend));
  }
  most = std::max(most, kernels::attention_forward_workspace_bytes(attention_shape(s, size.prompt), s.backend));
  return std::max(most, kernels::attention_decode_workspace_bytes({.capacity = size.capacity, .shape = attention_shape(s, 1)}, s.backend));
}

Decoder::Crossing Decoder::crossing(Places& places, const ModelShape& s, const DecoderSize& size) {
  return {.inputs = places.take<std::int32_t>(input_bytes(size.prompt)),
          .logits = places.take<float>(floats(s.V)),
          .likeliest = places.take<std::int32_t>(sizeof(std::int32_t))};
}

Decoder::Buffers Decoder::lay_out(const ModelShape& s, const DecoderSize& size, std::uintptr_t base) {
  Places places(base);
  const std::int64_t R = size.prompt;
  Buffers b;
  b.cache_bytes = round_up(s.bytes_of(size.capacity * s.G * s.D), alignment);
  b.rope = places.take<float>(floats(size.capacity * s.D));
  b.keys = places.take(s.L * b.cache_bytes);
  b.values = places.take(s.L * b.cache_bytes);
  b.rotations = places.take<float>(floats(R * s.D));
  b.stream = places.take(s.bytes_of(R * s.C));
  b.normed = places.take(s.bytes_of(R * s.C));
  b.qkv = places.take(s.bytes_of(R * s.qkv_width()));
  b.context = places.take(s.bytes_of(R * s.H * s.D));
  b.gate_up = places.take(s.bytes_of(R * 2 * s.F));
  b.activated = places.take(s.bytes_of(R * s.F));
  b.lse = places.take<float>(floats(R * s.H));
  static_cast<Crossing&>(b) = crossing(places, s, size);
  const std::size_t workspace = workspace_bytes(s, size);
  b.workspace = {places.take(static_cast<std::int64_t>(workspace)), workspace};
  b.bytes = places.used();
  return b;
}

TierBytes Decoder::bytes(const Deck& deck, const DecoderSize& size) {
  const ModelShape s = shape_of(deck);
  const bool on_gpu = s.backend == kernels::Backend::cuda;
  TierBytes bytes{};
  bytes[static_cast<std::size_t>(on_gpu ? Tier::device : Tier::host)] = lay_out(s, size, 0).bytes;
  if (on_gpu) {
    Places pinned(0);
    crossing(pinned, s, size);
    bytes[static_cast<std::size_t>(Tier::pinned)] = pinned.used();
  }
  return bytes;
}

Decoder::Decoder(const Engine& engine, const Deck& deck, const DecoderSize& size)
    : shape_(shape_of(deck)), size_(size), stream_(deck.run.device, graph_mode(deck)) {
  TESSERA_REQUIRE(size.prompt > 0 && size.prompt <= size.capacity, "a prompt of {} in a text of {}", size.prompt, size.capacity);
  TESSERA_REQUIRE(size.capacity <= std::numeric_limits<std::int32_t>::max(), "positions of a text of {} are no int32", size.capacity);
  const TierBytes needed = bytes(deck, size);
  auto arena = [&](Tier tier) {
    return Arena(tier, static_cast<std::size_t>(needed[static_cast<std::size_t>(tier)]), fmt::format("tessera.decoder.{}", name_of(tier)));
  };
  const bool on_gpu = shape_.backend == kernels::Backend::cuda;
  arena_ = arena(on_gpu ? Tier::device : Tier::host);
  at_ = lay_out(shape_, size, reinterpret_cast<std::uintptr_t>(arena_.data()));
  host_ = at_;
  if (on_gpu) {
    pinned_ = arena(Tier::pinned);
    Places pinned(reinterpret_cast<std::uintptr_t>(pinned_.data()));
    host_ = crossing(pinned, shape_, size);
  }
  context_ = {.workspace = at_.workspace, .backend = shape_.backend, .stream = stream_.get()};
  fill_rope_table(deck.model);

  for (std::int64_t l = 0; l < shape_.L; ++l) {
    auto weight = [&](const char* tensor) { return engine.weight_address(fmt::format("layers.{}.{}", l, tensor)); };
    auto optional = [&](bool present, const char* tensor) { return present ? weight(tensor) : nullptr; };
    layers_.push_back({.norm = weight("attention.norm"),
                       .wqkv = weight("attention.wq"),
                       .bias = optional(shape_.qkv_bias, "attention.bq"),
                       .q_norm = optional(shape_.qk_norm, "attention.q_norm"),
                       .k_norm = optional(shape_.qk_norm, "attention.k_norm"),
                       .wo = weight("attention.wo"),
                       .mlp_norm = weight("mlp.norm"),
                       .gate_up = weight("mlp.w_gate"),
                       .down = weight("mlp.w_down")});
  }
  embedding_ = engine.weight_address("embedding.weight");
  head_norm_ = engine.weight_address("head.norm");
  head_ = shape_.tied ? embedding_ : engine.weight_address("head.weight");
}

void Decoder::fill_rope_table(const ModelKeys& m) {
  std::vector<float> table(static_cast<std::size_t>(size_.capacity * shape_.D));
  kernels::rope_table(table.data(), 0, size_.capacity, shape_.D, m.rope_theta,
                      {.factor = m.rope_scaling == "llama3" ? m.rope_factor : 0,
                       .low_freq_factor = m.rope_low_freq_factor,
                       .high_freq_factor = m.rope_high_freq_factor,
                       .original_context = m.rope_original_context});
  copy(context_, at_.rope, table.data(), table.size() * sizeof(float));
  stream_.wait();
}

void Decoder::norm(void* out, const void* x, const void* weight, std::int64_t rows) {
  rmsnorm_forward(context_,
                  {.out = out, .x = x, .weight = weight, .rows = rows, .C = shape_.C, .eps = shape_.norm_eps, .dtype = shape_.dtype});
}

void Decoder::add_product(kernels::Gemm product) {
  product.c = at_.normed, product.addend = at_.stream;
  gemm(context_, product);
  std::swap(at_.stream, at_.normed);
}

void Decoder::attention(const LayerWeights& w, std::int64_t layer, std::int64_t rows) {
  const ModelShape& s = shape_;
  const Products products(s, rows);
  const std::int64_t width = s.bytes_of(s.qkv_width()), cached = s.bytes_of(s.G * s.D);
  std::byte *q = at_.qkv, *k = q + s.bytes_of(s.H * s.D), *v = k + cached;
  std::byte *keys = at_.keys + layer * at_.cache_bytes, *values = at_.values + layer * at_.cache_bytes;
  norm(at_.normed, at_.stream, w.norm, rows);
  gemm(context_, linear::forward(products.qkv, at_.qkv, at_.normed, {w.wqkv}, w.bias));
  if (s.qk_norm)
    qk_norm_rope_forward(context_, {.out = q,
                                    .x = q,
                                    .q_norm = w.q_norm,
                                    .k_norm = w.k_norm,
                                    .table = at_.rotations,
                                    .M = rows,
                                    .T = rows,
                                    .H = s.H,
                                    .G = s.G,
                                    .D = s.D,
                                    .eps = s.norm_eps,
                                    .dtype = s.dtype});
  else
    rope(context_,
         {.x = q, .table = at_.rotations, .M = rows, .T = rows, .heads = s.H + s.G, .D = s.D, .stride = s.qkv_width(), .dtype = s.dtype});
  if (rows == 1) {
    attention_decode(context_, {.out = at_.context,
                                .qkv = at_.qkv,
                                .cache_k = keys,
                                .cache_v = values,
                                .position = at_.inputs + rows,
                                .capacity = size_.capacity,
                                .shape = attention_shape(s, 1)});
  } else {  // the text begins here: its tokens see each other alone, not the cache
    for (auto [cache, from] : {std::pair{keys, k}, std::pair{values, v}})
      copy_rows(context_, {.to = cache, .to_stride = cached, .from = from, .from_stride = width, .bytes = cached, .rows = rows});
    attention_forward(context_, {.out = at_.context, .lse = at_.lse, .qkv = at_.qkv, .shape = attention_shape(s, rows)});
  }
  add_product(linear::forward(products.out, nullptr, at_.context, {w.wo}));
}

void Decoder::mlp(const LayerWeights& w, std::int64_t rows) {
  const ModelShape& s = shape_;
  const Products products(s, rows);
  norm(at_.normed, at_.stream, w.mlp_norm, rows);
  gemm(context_, linear::forward(products.gate_up, at_.gate_up, at_.normed, {w.gate_up}));
  swiglu_forward(context_, {.out = at_.activated, .gate_up = at_.gate_up, .M = rows, .F = s.F, .dtype = s.dtype});
  add_product(linear::forward(products.down, nullptr, at_.activated, {w.down}));
}

void Decoder::issue(std::int64_t rows) {
  const ModelShape& s = shape_;
  const std::int32_t *tokens = at_.inputs, *positions = tokens + rows;
  if (host_.inputs != at_.inputs) copy(context_, at_.inputs, host_.inputs, static_cast<std::size_t>(input_bytes(rows)));
  embedding_forward(context_, {.out = at_.stream, .table = embedding_, .tokens = tokens, .M = rows, .C = s.C, .dtype = s.dtype});
  // Rows of another table: with those of their positions, all layers rotate as if the pass began the text.
  embedding_forward(context_, {.out = at_.rotations, .table = at_.rope, .tokens = positions, .M = rows, .C = s.D, .dtype = DType::f32});
  for (std::int64_t l = 0; l < s.L; ++l) {
    const LayerWeights& weights = layers_[static_cast<std::size_t>(l)];
    attention(weights, l, rows);
    mlp(weights, rows);
  }
  norm(at_.normed, at_.stream + s.bytes_of((rows - 1) * s.C), head_norm_, 1);
  gemm(context_, logits_product(s, at_.logits, at_.normed, head_));
}

void Decoder::pass(std::span<const std::int32_t> tokens) {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  TESSERA_REQUIRE(length_ + rows <= size_.capacity, "the cache holds {} tokens", size_.capacity);
  stream_.wait();  // or the last pass's inputs might change before they have been read
  std::copy(tokens.begin(), tokens.end(), host_.inputs);
  std::iota(host_.inputs + rows, host_.inputs + 2 * rows, static_cast<std::int32_t>(length_));
  if (rows == 1)
    stream_.repeat([this] { issue(1); });
  else
    issue(rows);
  length_ += rows;
}

void Decoder::start(std::span<const std::int32_t> tokens) {
  TESSERA_REQUIRE(length_ == 0 && static_cast<std::int64_t>(tokens.size()) == size_.prompt, "a start with {} tokens after {}",
                  tokens.size(), length_);
  pass(tokens);
}

void Decoder::next(std::int32_t token) { pass({&token, 1}); }

std::span<const float> Decoder::logits() {
  if (host_.logits != at_.logits) copy(context_, host_.logits, at_.logits, static_cast<std::size_t>(floats(shape_.V)));
  stream_.wait();
  return {host_.logits, static_cast<std::size_t>(shape_.V)};
}

std::int32_t Decoder::likeliest() {
  argmax(context_, {.index = at_.likeliest, .x = at_.logits, .n = shape_.V});
  if (host_.likeliest != at_.likeliest) copy(context_, host_.likeliest, at_.likeliest, sizeof(std::int32_t));
  stream_.wait();
  if (*host_.likeliest < 0) fail_of_logits(length_);
  return *host_.likeliest;
}

}  // namespace tessera
