// The numbers that segments need, and the arithmetic they cost.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "deck/deck.hpp"
#include "kernels/activation/activation.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/preference/preference.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "model/table/fp8.hpp"

namespace tessera {

/// What the tokens of a pass are.
enum class Feed : std::uint8_t {
  samples,  ///< B sequences of T tokens with their targets, at positions 0 to T-1: training and evaluation
  prompt,   ///< the T tokens that a text begins with; their keys and values begin its caches, and logits follow the last one
  token     ///< the next token of a text, whose position lies in memory; it joins the caches, and logits follow it
};

/// Attention of a layer: what the rows of [model] say that `attention` reads.
struct Attention {
  std::int64_t H = 0, G = 0;                ///< query heads, key/value heads
  std::int64_t D = 0, Dv = 0;               ///< features of a query and a key head, and of a value head
  bool qkv_bias = false, out_bias = false;  ///< of its projections
  bool sinks = false;                       ///< a logit of each query head
  bool qk_norm = false;                     ///< of each head, in the pass that rotates it
  bool wide_qk_norm = false;                ///< of all heads together
  float scale = 0, softcap = 0;             ///< as in kernels::AttentionShape
  kernels::AttentionPath path = kernels::AttentionPath::native;
  friend bool operator==(const Attention&, const Attention&) = default;
  /// Elements of a token's queries, keys and values, of its keys and values, and of what its queries make of values.
  std::int64_t qkv_width() const { return H * D + kv_width(); }
  std::int64_t kv_width() const { return G * (D + Dv); }
  std::int64_t context_width() const { return H * Dv; }
  std::int64_t mean_dim() const { return (D + Dv) / 2; }
};

/// Blocks of a layer: how attention and feed-forward meet the residual stream, and what the feed-forward block is.
struct Block {
  NormPlacement norm = NormPlacement::pre;
  float scale = 1;  ///< of what joins the stream; 1 where it is normed
  float norm_eps = 1e-5f;
  float norm_offset = 0;    ///< norms scale by offset + weight
  bool layer_norm = false;  ///< norms of the stream take the mean off too
  bool norm_bias = false;   ///< they add a bias then
  std::int64_t F = 0;       ///< inner width of the feed-forward block
  kernels::GateActivation activation = kernels::GateActivation::silu;
  float gate_limit = 7;  ///< of GateActivation::clamped_silu
  bool gated = true;     ///< else the feed-forward block has `plain`
  kernels::PlainActivation plain = kernels::PlainActivation::gelu;
  bool mlp_bias = false;
  /// Attention and feed-forward are one block.
  bool side_by_side() const { return norm == NormPlacement::parallel; }
  bool norms_input() const { return norm != NormPlacement::post; }
  bool norms_output() const { return norm == NormPlacement::post || norm == NormPlacement::both; }
  /// What a block has made joins the stream in the product that makes it.
  bool joins_at_once() const { return !norms_output() && scale == 1; }
  /// Features of the feed-forward block's first product.
  std::int64_t up_width() const { return gated ? 2 * F : F; }
  friend bool operator==(const Block&, const Block&) = default;
};

/// The router of a layer and its experts, of which a token has k.
struct Router {
  std::int64_t E = 0, k = 0, F = 0;         ///< E 0: the layer has one feed-forward block, which takes every token
  std::int64_t S = 0;                       ///< inner width of the shared expert; 0: none
  bool shared_gate = true;                  ///< which is weighed by a logit of its own
  bool normalized = true;                   ///< weights of a token's experts are divided by their sum
  bool sigmoid = false;                     ///< scores are sigmoids of logits
  float scale = 1;                          ///< of weights
  std::int64_t groups = 1, top_groups = 1;  ///< as in kernels::RouterShape
  double capacity_factor = 0;               ///< 0: dropless
  float balance_loss = 0, z_loss = 0;       ///< coefficients
  bool biased = false;                      ///< a token's experts are chosen with a bias of each
  bool product_bias = false;                ///< the router's product and those of experts have biases
  bool weighs_shared() const { return S > 0 && shared_gate; }
  friend bool operator==(const Router&, const Router&) = default;
};

/// What the head makes of pairs of texts, which lie in the sequences of a micro-batch.
struct Preference {
  bool on = false;               ///< else the loss is that of tokens
  bool has_reference = false;    ///< log-probabilities of a reference are there
  bool makes_reference = false;  ///< the model is the reference, and makes them
  kernels::PreferenceRules rules = {};
};

/// The angles of a table of rotations.
struct Angles {
  double theta = 10000;  ///< base of the frequencies
  bool scaled = false;   ///< by model.rope_scaling
  bool still = false;    ///< none: cosines are 1
  friend bool operator==(const Angles&, const Angles&) = default;
};

/// How layers rotate queries and keys.
struct Rotation {
  std::int64_t rotated = 0;  ///< features of a head that are rotated, as in kernels::Rope
  bool neighbours = false;   ///< in pairs (2i, 2i+1), as there
  bool by_longest = false;   ///< with ModelShape::documents: tables are those of the longest one of a batch
  std::vector<Angles> tables = {};
  friend bool operator==(const Rotation&, const Rotation&) = default;
};

/// What may differ from layer to layer.
struct LayerKind {
  std::int64_t window = 0;  ///< keys that a query sees at most; 0: all before it
  int rotation = 0;         ///< of queries and keys, one of Rotation::tables; -1: none
  bool experts = true;      ///< those of the model, where it has any
};

/// Of n things in order, those that rank `index` of `size` has: numbers differ by one at most, and the first ranks have more.
Range part_of(std::int64_t n, int size, int index);

/// Letters as everywhere: B batch, T time, C width, H query heads, G key/value heads, D head dim, F feed-forward width, V vocabulary, L
/// layers. A row of [model] says by its `read_by` which of the four records has it; what the ends of the stream read lies here.
struct ModelShape {
  std::int64_t B = 0, T = 0, C = 0, V = 0, L = 0;
  Attention attention = {};
  Block block = {};
  Router router = {};
  Rotation rotation = {};
  DType dtype = DType::f32;  ///< compute type
  kernels::Backend backend = kernels::Backend::host;
  bool tied = false;
  float embedding_scale = 1;
  std::int64_t learned_positions = 0;  ///< vectors that the stream begins with beside the embedding's rows; 0: none
  bool head_bias = false;
  kernels::LogitMap logit_map = {};
  /// Of each layer; null: all are as LayerKind begins. Shared, since each task of a schedule has a shape of its own.
  std::shared_ptr<const std::vector<LayerKind>> kinds = nullptr;
  LayerKind kind = {};           ///< of the layer whose text is recorded
  std::int64_t loss_chunk = 0;   ///< tokens whose gradients of logits are held at once
  std::int64_t logit_rows = 0;   ///< of these, tokens whose logits are made at once; 0: all of them
  bool pack_weights = false;     ///< segments read packed copies of matrices where the builder binds them
  Fp8Shape fp8 = {};             ///< products of linear layers whose operands are codes of 8 bits
  bool deterministic = false;    ///< every kernel must give the same bits twice
  LoraKeys lora = {};            ///< adapters beside matrices of layers
  std::uint64_t seed = 0;        ///< of what is drawn in a step: run.seed
  std::int64_t loss_groups = 0;  ///< groups of tokens whose losses are summed apart as well: files of a mixture, texts of a task
  Preference preference = {};
  bool documents = false;  ///< of samples: attention and positions keep to the documents that sequences hold
  bool padding = false;    ///< of samples, with experts: sequences end in padding, which no router counts
  Feed feed = Feed::samples;
  std::int64_t capacity = 0;  ///< of a text: tokens that its caches hold
  bool likeliest = false;     ///< of a text: the id of the largest logit is found where the logits are

  int tp = 1, tp_index = 0;  ///< tensor-parallel ranks, of which this one has H query heads, G key/value heads and F features
  int keys_shared = 1;       ///< tensor-parallel neighbours that have the same key head (G is 1), of whose features each makes a part
  std::int64_t cp = 1;       ///< context-parallel ranks, each with T / cp tokens of every sequence
  int cp_index = 0;          ///< of this one among them
  bool ring = false;         ///< inside attention they keep their tokens, and blocks of keys travel; else they exchange tokens for heads
  std::int64_t gap = 0;      ///< inside attention of a ring: tokens of the sequence between the first half of the rows and the second
  int ep = 1, ep_index = 0;  ///< expert-parallel ranks, of which this one has E / ep experts of each layer

  std::int64_t row_ranks = 1;  ///< tensor-parallel ranks that each do all of a segment with their own rows of the stream, as if alone
  std::int64_t row_rank = 0;   ///< of this one among them

  std::int64_t tokens() const { return B * T / cp / row_ranks; }  ///< M, of a micro-batch on this rank
  /// Most texts of pairs in a micro-batch, over all parts: each has two tokens at least.
  std::int64_t sequences() const { return 2 * ceil_div(B * T, 4); }
  std::int64_t parts() const { return cp * row_ranks; }  ///< of a micro-batch's tokens, of which this rank has one
  bool exchanges_heads() const { return cp > 1 && !ring; }
  /// Tokens that an expert takes of a pass at most; a token goes to an expert once.
  std::int64_t expert_capacity() const;
  /// Rows that tokens of this rank have together at most.
  std::int64_t expert_rows() const;
  /// Layers that have experts.
  std::int64_t expert_layers() const;
  bool has_experts(int layer) const { return router.E > 0 && (!kinds || (*kinds)[static_cast<std::size_t>(layer)].experts); }
  /// Experts of a layer that this rank has, and the first of them.
  std::int64_t own_experts() const { return router.E / ep; }
  std::int64_t first_expert() const { return ep_index * own_experts(); }
  /// Rows that tokens of one rank have together at most with experts of one rank: a block of what ranks exchange.
  std::int64_t expert_block() const;
  /// Rows that the experts of this rank have together at most, of the tokens of all ranks: what their matrices are planned for.
  std::int64_t arriving_rows() const { return ep * expert_block(); }
  /// R: rows of the residual stream that this rank holds. Between the products of its segments, tensor-parallel ranks share the tokens.
  std::int64_t rows() const { return tokens() / tp; }
  /// Tokens of the vocabulary whose rows of embedding and head this rank holds.
  Range vocabulary() const { return part_of(V, tp, tp_index); }
  /// Features of a head that are rotated: numbers in a row of their tables.
  std::int64_t rotated_features() const { return rotation.rotated == 0 ? attention.D : rotation.rotated; }
  bool shares_keys() const { return keys_shared > 1; }
  /// Elements of a token's queries, keys and values that this rank's product makes.
  std::int64_t own_qkv_width() const { return attention.H * attention.D + attention.kv_width() / keys_shared; }
  std::int64_t bytes_of(std::int64_t elements) const { return elements * static_cast<std::int64_t>(size_of(dtype)); }
};

/// Shape of a training micro-batch of this deck.
ModelShape model_shape(const Deck& deck);

/// What a user is told of a model with experts: how many, and the rows that a micro-batch is planned for.
std::string describe_experts(const ModelShape& shape);

/// What rank `index` of `size` tensor-parallel ranks computes of it: heads and features in equal parts, of fewer key heads than ranks one.
ModelShape cut_over_tp(const ModelShape& shape, int size, int index);

/// The same where a layer's text is recorded: with the layer's kind.
ModelShape in_layer(const ModelShape& shape, int layer);

/// What a tensor-parallel rank computes of a layer with experts, which are not cut over them: all of it, for its own rows of the stream.
ModelShape on_own_rows(const ModelShape& shape);

/// What rank `index` of the shape's expert-parallel ranks computes of it: the experts from its first on.
ModelShape cut_over_ep(const ModelShape& shape, int index);

/// What rank `index` of the shape's context-parallel ranks computes of it.
ModelShape cut_over_cp(const ModelShape& shape, int index);

/// Positions of each sequence that rank `index` of the shape's context-parallel ranks has, in the order of its rows. In a ring a sequence
/// is 2 cp chunks, of which a rank has the one of its number and that of its number from the end: causal attention is then the same work
/// for all (head and tail, as in Megatron-LM).
std::vector<Range> positions_of(const ModelShape& shape, int index);

/// What a context-parallel rank computes of attention by a call: all tokens with a part of the heads, or in a ring its own tokens.
ModelShape inside_attention(const ModelShape& shape);

/// Rows of the tables of rotations, as positions: those of attention, but all of a sequence where documents go round a ring, since the
/// number of a token in its document is none of its rank's.
std::vector<Range> rotated_positions(const ModelShape& shape, int index);

/// A value or buffer of one of Rotation::tables: "rope", "rope.1", ...
std::string name_of_rotation(std::string_view what, int rotation);

/// What a text is recorded for.
struct TextSize {
  std::int64_t prompt = 1;    ///< tokens that it begins with, taken in one pass
  std::int64_t capacity = 0;  ///< the longest text, prompt and continuation; 0: no text
  bool likeliest = false;     ///< the likeliest token follows: its id alone comes to the host, and no logits
};
/// Shape of a pass over a text: its prompt, or a token after it.
ModelShape text_shape(const ModelShape& shape, const TextSize& text, Feed feed);

kernels::AttentionShape attention_shape(const ModelShape& shape);

/// Of sequences of so many tokens: twice the mean number of keys that a query sees.
double seen_keys(double tokens, std::int64_t window);
/// FLOPs of causal attention's forward pass over the B T tokens of a shape, in the window of its layer.
double causal_flops(const ModelShape& shape);
/// What the backward pass costs of the forward pass: five products for two, of queries and keys three, of values two.
double backward_ratio(const Attention& attention);

}  // namespace tessera
