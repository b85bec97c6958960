#include "model/table/shape.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "deck/kinds_of_layers.hpp"
#include "kernels/dispatch/dispatch.hpp"

namespace tessera {
namespace {

/// Auto is ours where runs must be reproducible, since which of two is faster differs from start to start, and where documents are masked.
kernels::AttentionPath attention_path(const Deck& deck) {
  using kernels::AttentionPath;
  if (deck.data.document_mask) return AttentionPath::native;
  switch (deck.kernels.attention) {
    case AttentionMode::native:
      return AttentionPath::native;
    case AttentionMode::cudnn:
      return AttentionPath::cudnn;
    case AttentionMode::automatic:
      break;
  }
  return deck.run.reproducible ? AttentionPath::native : AttentionPath::fastest;
}

Router router_of(const Deck& deck) {
  const ModelKeys& m = deck.model;
  if (m.experts == 0) return {};
  return {.E = m.experts,
          .k = m.experts_per_token,
          .F = m.expert_ff_width,
          .S = m.shared_ff_width,
          .shared_gate = m.shared_gate,
          .normalized = m.normalize_top_k,
          .sigmoid = m.router_scores == RouterScores::sigmoid,
          .scale = static_cast<float>(m.router_scale),
          .groups = m.expert_groups,
          .top_groups = m.groups_per_token,
          .capacity_factor = deck.experts.capacity_factor,
          .balance_loss = static_cast<float>(m.router_aux_loss),
          .z_loss = static_cast<float>(m.router_z_loss),
          .biased = m.router_balance == RouterBalance::bias,
          .product_bias = m.expert_bias};
}

/// Kinds of layers, and the tables of rotations that they read. Where QK-norm rotates in the same pass, what is not to be rotated has a
/// table that stands still.
void add_kinds(ModelShape& s, const ModelKeys& m) {
  std::vector<LayerKind> kinds;
  for (const LayerKeys& keys : keys_of_layers(m)) {
    const bool rotates = keys.positions == PositionMode::rope;
    Angles angles{.theta = keys.rope_theta, .scaled = keys.rope_scaling != RopeMode::none};
    if (!rotates) angles = {.still = true};
    LayerKind kind{.window = keys.window, .rotation = -1, .experts = keys.experts};
    if (rotates || s.attention.qk_norm) {
      std::vector<Angles>& tables = s.rotation.tables;
      const auto known = std::ranges::find(tables, angles);
      kind.rotation = static_cast<int>(known - tables.begin());
      if (known == tables.end()) tables.push_back(angles);
    }
    kinds.push_back(kind);
  }
  s.kinds = std::make_shared<const std::vector<LayerKind>>(std::move(kinds));
}

/// As transformers has it, in the type that the stream is computed in.
float embedding_scale(const ModelKeys& m, DType compute) {
  const auto scale = static_cast<float>(m.embedding_scale == 0 ? std::sqrt(static_cast<double>(m.width)) : m.embedding_scale);
  switch (compute) {
    case DType::bf16:
      return static_cast<float>(bf16(scale));
    case DType::f16:
      return static_cast<float>(f16(scale));
    default:
      return scale;
  }
}

kernels::GateActivation activation_of(Activation activation) {
  using enum kernels::GateActivation;
  switch (activation) {
    case Activation::silu:
      return silu;
    case Activation::gelu_tanh:
      return gelu_tanh;
    case Activation::gelu:
      return gelu;
    case Activation::clamped_silu:
      return clamped_silu;
    case Activation::relu_squared:
    case Activation::xielu:
      break;  // have no gate
  }
  return silu;
}
kernels::PlainActivation plain_activation_of(Activation activation) {
  using enum kernels::PlainActivation;
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh;
    case Activation::relu_squared:
      return relu_squared;
    case Activation::xielu:
      return xielu;
    default:
      return gelu;
  }
}

Attention attention_of(const Deck& deck) {
  const ModelKeys& m = deck.model;
  return {.H = m.heads,
          .G = m.kv_heads,
          .D = m.head_dim,
          .Dv = m.head_dim,
          .qkv_bias = m.qkv_bias,
          .out_bias = m.attention_out_bias,
          .sinks = m.attention_sinks,
          .qk_norm = m.qk_norm && !m.wide_qk_norm,
          .wide_qk_norm = m.qk_norm && m.wide_qk_norm,
          .scale = static_cast<float>(m.attention_scale),
          .softcap = static_cast<float>(m.attention_softcap),
          .path = attention_path(deck)};
}

Block block_of(const ModelKeys& m) {
  return {.norm = m.norm_placement,
          .scale = static_cast<float>(m.residual_scale),
          .norm_eps = static_cast<float>(m.norm_eps),
          .norm_offset = m.norm_form == NormForm::one_plus_weight ? 1.0f : 0.0f,
          .layer_norm = m.norm_form == NormForm::layer_norm || m.norm_form == NormForm::layer_norm_no_bias,
          .norm_bias = m.norm_form == NormForm::layer_norm,
          .F = m.ff_width,
          .activation = activation_of(m.activation),
          .gate_limit = static_cast<float>(m.gate_limit),
          .gated = m.gated,
          .plain = plain_activation_of(m.activation),
          .mlp_bias = m.mlp_bias};
}

/// Tables are those that add_kinds finds.
Rotation rotation_of(const Deck& deck) {
  const ModelKeys& m = deck.model;
  return {.rotated = rotated_features(m),
          .neighbours = m.rope_pairs == RopePairs::neighbours,
          .by_longest = deck.data.document_mask && m.rope_original_context < deck.batch.sequence_length &&
                        (m.rope_scaling == RopeMode::dynamic || m.rope_scaling == RopeMode::longrope)};
}

kernels::PreferenceLoss loss_of(PreferenceObjective objective) {
  using enum PreferenceObjective;
  using kernels::PreferenceLoss;
  switch (objective) {
    case dpo:
      return PreferenceLoss::dpo;
    case robust:
      return PreferenceLoss::robust;
    case hinge:
      return PreferenceLoss::hinge;
    case ipo:
      return PreferenceLoss::ipo;
    case sigmoid_norm:
      return PreferenceLoss::sigmoid_norm;
    case apo_zero:
      return PreferenceLoss::apo_zero;
    case apo_down:
      return PreferenceLoss::apo_down;
    case simpo:
      return PreferenceLoss::simpo;
    case cpo:
      return PreferenceLoss::cpo;
    case sft:
      return PreferenceLoss::sft;
  }
  fail(ExitCode::internal, "an objective without a loss");
}

Preference preference_of(const PreferenceKeys& keys) {
  Preference p{.on = keys.on(),
               .has_reference = keys.reference != PreferenceReference::none && !keys.of_reference,
               .makes_reference = keys.of_reference};
  p.rules.beta = keys.beta, p.rules.label_smoothing = keys.label_smoothing, p.rules.gamma = keys.gamma, p.rules.alpha = keys.alpha;
  for (std::size_t i = 0; i < keys.objective.size(); ++i)
    p.rules.weight[static_cast<std::size_t>(loss_of(from_word<PreferenceObjective>(keys.objective[i]).value()))] =
        keys.weights.empty() ? 1 : keys.weights[i];
  return p;
}

constexpr std::int64_t rows_of_products = 128;  ///< whose multiples products like

/// Tokens of a chunk of the loss where the deck says auto.
/// On the host, too, each chunk moves the head's gradient twice and its weight twice, 10 bytes an element in bf16 beside about 20 of a
/// logit a token: some hundred tokens more than half the width keep that small. Gradients of logits take about 128 MiB. On a GPU each chunk
/// moves the head's gradient twice and its weight twice, 12 bytes an element beside 6 floating-point operations a token: that is small from
/// some 2000 tokens on. Chunks are made equal.
std::int64_t loss_chunk(const ModelShape& s) {
  const bool host = s.backend == kernels::Backend::host;
  const std::int64_t most = host ? std::clamp<std::int64_t>((std::int64_t{128} << 20) / s.bytes_of(s.V), 512, 4096)
                                 : std::clamp<std::int64_t>((std::int64_t{512} << 20) / (4 * s.V), 2048, 8192);
  return round_up(ceil_div(s.tokens(), ceil_div(s.tokens(), most)), rows_of_products);
}

/// Tokens of a host's chunk whose logits are made at once: about 64 MiB of fp32, which a large last-level cache holds until the loss has
/// read them. Each time the head's weight is read, and put in order for the product: so that this is no more than what a cache saves, they
/// are at least a sixth of the width. Half as many cost 8 % of the product, twice as many saved nothing more.
std::int64_t logit_rows(const ModelShape& s) {
  if (s.backend != kernels::Backend::host) return 0;
  const std::int64_t hot = (std::int64_t{64} << 20) / (4 * s.V) / rows_of_products * rows_of_products;
  return std::max({hot, round_up(s.C / 6, rows_of_products), rows_of_products});
}

}  // namespace

std::int64_t ModelShape::expert_capacity() const { return kernels::expert_capacity(router.capacity_factor, tokens(), router.k, router.E); }

std::int64_t ModelShape::expert_layers() const {
  std::int64_t n = 0;
  for (int layer = 0; layer < L; ++layer) n += has_experts(layer);
  return n;
}

std::int64_t ModelShape::expert_rows() const { return std::min(tokens() * router.k, router.E * expert_capacity()); }

std::int64_t ModelShape::expert_block() const {
  // A token goes to an expert once.
  return std::min(tokens() * std::min(router.k, own_experts()), own_experts() * expert_capacity());
}

ModelShape model_shape(const Deck& deck) {
  const ModelKeys& m = deck.model;
  ModelShape s{.B = deck.batch.micro,
               .T = deck.batch.sequence_length,
               .C = m.width,
               .V = m.vocab,
               .L = m.layers,
               .attention = attention_of(deck),
               .block = block_of(m),
               .router = router_of(deck),
               .rotation = rotation_of(deck),
               .dtype = deck.precision.compute,
               .backend = deck.run.device == RunDevice::cuda ? kernels::Backend::cuda : kernels::Backend::host,
               .tied = m.tied,
               .embedding_scale = embedding_scale(m, deck.precision.compute),
               .learned_positions = m.learned_positions,
               .head_bias = m.head_bias,
               .logit_map = {.scale = static_cast<float>(m.logit_scale), .cap = static_cast<float>(m.logit_softcap)},
               .loss_chunk = deck.kernels.loss_chunk,
               .pack_weights = deck.kernels.pack_weights,
               .fp8 = fp8_shape(deck),
               .deterministic = deck.run.reproducible,
               .lora = m.lora,
               .seed = static_cast<std::uint64_t>(deck.run.seed),
               .preference = preference_of(deck.preference),
               .documents = deck.data.document_mask,
               .padding = deck.model.experts > 0 && (deck.data.packing == Packing::documents || deck.preference.on()),
               .cp = deck.mesh.cp,
               .ring = deck.mesh.cp > 1 && deck.context.method == ContextMethod::ring,
               .ep = static_cast<int>(deck.mesh.ep)};
  add_kinds(s, m);
  s.loss_chunk = std::min(s.loss_chunk == 0 ? loss_chunk(s) : s.loss_chunk, s.tokens());
  s.logit_rows = std::min(logit_rows(s), s.loss_chunk);
  return s;
}

std::string describe_experts(const ModelShape& s) {
  const Router& e = s.router;
  const std::int64_t layers = s.expert_layers();
  int first = 0;
  while (first < s.L && !s.has_experts(first)) ++first;
  const std::string where = layers == s.L           ? "each layer"
                            : layers == s.L - first ? fmt::format("each layer from layer {} on", first)
                                                    : fmt::format("{} of {} layers", layers, s.L);
  std::string text = fmt::format("{} in {} of {} features, {} for a token", e.E, where, e.F, e.k);
  if (e.S > 0) text += fmt::format(", and one of {} features for all", e.S);
  const char* passed = s.parts() == 1 ? "a micro-batch" : "a rank's part of a micro-batch";
  if (e.capacity_factor == 0)
    text += fmt::format("; dropless: {} rows of {}, for any choice of its tokens", s.expert_rows(), passed);
  else
    text += fmt::format("; each takes at most {} of the {} tokens of {}, {} rows together; the rest is dropped", s.expert_capacity(),
                        s.tokens(), passed, s.expert_rows());
  if (s.ep == 1) return text;
  return text + fmt::format(
                    "; {} of them on each of {} ranks, which send each other blocks of {} rows, {}. A rank has space for {} rows, {} for "
                    "each value of their width; balanced experts use {}",
                    s.own_experts(), s.ep, s.expert_block(),
                    e.capacity_factor == 0 ? "as many as their tokens could choose there" : "the experts' limit there", s.arriving_rows(),
                    human_bytes(static_cast<double>(s.bytes_of(s.arriving_rows() * s.C))), s.expert_rows());
}

Range part_of(std::int64_t n, int size, int index) {
  const auto begin = [&](std::int64_t i) { return n / size * i + std::min(i, n % size); };
  return {begin(index), begin(index + 1)};
}

ModelShape cut_over_tp(const ModelShape& shape, int size, int index) {
  ModelShape s = shape;
  s.keys_shared = shape.attention.G < size ? static_cast<int>(size / shape.attention.G) : 1;
  s.attention.H /= size, s.attention.G = std::max<std::int64_t>(1, shape.attention.G / size), s.block.F /= size;
  s.tp = size, s.tp_index = index;
  return s;
}

ModelShape in_layer(const ModelShape& shape, int layer) {
  ModelShape s = shape;
  if (shape.kinds) s.kind = (*shape.kinds)[static_cast<std::size_t>(layer)];
  if (s.kind.window > 0) s.capacity = std::min(s.capacity, s.kind.window);
  return s;
}

ModelShape on_own_rows(const ModelShape& shape) {
  ModelShape s = shape;
  s.row_ranks = s.tp, s.row_rank = s.tp_index, s.tp = 1, s.tp_index = 0, s.keys_shared = 1;
  return s;
}

ModelShape cut_over_ep(const ModelShape& shape, int index) {
  ModelShape s = shape;
  s.ep_index = index;
  return s;
}

ModelShape cut_over_cp(const ModelShape& shape, int index) {
  ModelShape s = shape;
  s.cp_index = index;
  return s;
}

std::vector<Range> positions_of(const ModelShape& s, int index) {
  if (!s.ring) return {part_of(s.T, static_cast<int>(s.cp), index)};
  const std::int64_t n = s.T / (2 * s.cp), head = index * n, tail = (2 * s.cp - 1 - index) * n;
  return {{head, head + n}, {tail, tail + n}};
}

ModelShape inside_attention(const ModelShape& shape) {
  ModelShape s = shape;
  if (s.ring)
    s.T /= s.cp, s.gap = (s.cp - 1 - s.cp_index) * s.T;
  else
    s.attention.H /= s.cp, s.attention.G = std::max<std::int64_t>(1, s.attention.G / s.cp);
  s.cp = 1, s.ring = false, s.keys_shared = 1;
  return s;
}

std::vector<Range> rotated_positions(const ModelShape& s, int index) {
  return s.ring && !s.documents ? positions_of(s, index) : std::vector<Range>{{0, s.T}};
}

std::string name_of_rotation(std::string_view what, int rotation) {
  return rotation == 0 ? std::string(what) : fmt::format("{}.{}", what, rotation);
}

ModelShape text_shape(const ModelShape& shape, const TextSize& text, Feed feed) {
  ModelShape s = shape;
  s.B = 1, s.T = feed == Feed::prompt ? text.prompt : 1, s.cp = 1, s.ring = false, s.ep = 1;
  s.feed = feed, s.capacity = text.capacity, s.likeliest = text.likeliest;
  s.pack_weights = false, s.fp8 = {};                 // for products of many rows
  s.attention.path = kernels::AttentionPath::native;  // no search comes before a text
  s.router.capacity_factor = 0;                       // what a token becomes does not depend on those beside it
  return s;
}

kernels::AttentionShape attention_shape(const ModelShape& s) {
  // A window of all keys is none, whatever code that leaves the choice of.
  const std::int64_t window = s.feed != Feed::token && s.kind.window >= s.T + s.gap ? 0 : s.kind.window;
  return {.B = s.B,
          .T = s.T,
          .H = s.attention.H,
          .G = s.attention.G,
          .D = s.attention.D,
          .Dv = s.attention.Dv,
          .dtype = s.dtype,
          .path = s.attention.path,
          .deterministic = s.deterministic,
          .window = window,
          .scale = s.attention.scale,
          .softcap = s.attention.softcap,
          .gap = {s.gap > 0 ? s.T / 2 : 0, s.gap}};
}

double seen_keys(double tokens, std::int64_t window) {
  const auto w = static_cast<double>(window);
  return window == 0 || w >= tokens ? tokens : w * (2 - w / tokens);
}

double causal_flops(const ModelShape& s) {
  const Attention& a = s.attention;
  return static_cast<double>(s.B * a.H * (a.D + a.Dv)) * static_cast<double>(s.T) * seen_keys(static_cast<double>(s.T), s.kind.window);
}

double backward_ratio(const Attention& a) { return static_cast<double>(3 * a.D + 2 * a.Dv) / static_cast<double>(a.D + a.Dv); }

}  // namespace tessera
