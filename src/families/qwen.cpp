// Qwen2 and 2.5, whose queries, keys and values have biases; Qwen3, whose queries and keys have norms; and both with experts.
#include <algorithm>
#include <array>

#include "families/layers.hpp"

namespace tessera {
namespace {

/// Its class makes a shared expert of any width, and ours has none of 0.
bool has_shared_expert_of_qwen(const ModelKeys& m) { return m.shared_ff_width > 0; }

bool slides_above(std::int64_t layer, std::int64_t first) { return layer >= first; }
bool slides_in_turns_below(std::int64_t layer, std::int64_t first) { return layer % 2 == 0 && layer < first; }

constexpr WindowRule qwen_window{.key = WindowRule::Key::switched, .standard = 4096, .lists = true, .slides = slides_above};
constexpr WindowRule qwen2_moe_window{.key = WindowRule::Key::switched, .standard = 4096, .lists = true, .slides = slides_in_turns_below};
constexpr WindowRule qwen3_moe_window{.key = WindowRule::Key::switched, .standard = 4096};

/// The layer of each number that the step divides has experts, where no list names it; the first is number 1 here and 0 there.
void read_sparse(ConfigReader& config, std::vector<LayerKeys>& layers) {
  const std::int64_t step = config.whole("decoder_sparse_step", 1);
  if (step < 1) return config.fault("decoder_sparse_step", "is not a number of layers, 1 or more");
  for (std::size_t i = 0; i < layers.size(); ++i) layers[i].experts = (static_cast<std::int64_t>(i) + 1) % step == 0;
  const JsonNode* dense = config.find("mlp_only_layers");
  if (!dense) return;
  if (dense->kind != JsonNode::Kind::list) return config.wrong(*dense, "a list of layers");
  for (const JsonNode& one : dense->children)
    if (const std::int64_t layer = config.whole(one); layer >= 0 && layer < static_cast<std::int64_t>(layers.size()))
      layers[static_cast<std::size_t>(layer)].experts = false;
}

/// By a step where one says it all, else by the list.
void put_sparse(Json& c, const ModelKeys& m) {
  const auto said_by = [&](std::int64_t step) {
    for (std::int64_t i = 0; i < m.layers; ++i)
      if (m.has_experts(i) != ((i + 1) % step == 0)) return false;
    return true;
  };
  std::int64_t first = 0;
  while (first < m.layers && !m.has_experts(first)) ++first;
  auto dense = Json::array();
  const bool by_step = said_by(first + 1);
  for (std::int64_t i = 0; !by_step && i < m.layers; ++i)
    if (!m.has_experts(i)) dense.push_back(i);
  c["decoder_sparse_step"] = by_step ? first + 1 : 1;
  c["mlp_only_layers"] = dense;
}

// transformers 5 writes the experts of a Qwen3-MoE under Mixtral's name.
constexpr auto moe_keys =
    std::to_array<FamilyKey>({{.name = "num_experts_per_tok", .field = &ModelKeys::experts_per_token, .required = true},
                              {.name = "output_router_logits", .fixed = "false"},
                              {.name = "num_experts", .field = &ModelKeys::experts, .required = true, .also = "num_local_experts"},
                              {.name = "moe_intermediate_size", .field = &ModelKeys::expert_ff_width, .required = true},
                              {.name = "norm_topk_prob", .field = &ModelKeys::normalize_top_k},
                              {.name = "decoder_sparse_step", .fixed = "1"},
                              {.name = "mlp_only_layers", .fixed = "[]"},
                              {.name = "shared_expert_intermediate_size", .field = &ModelKeys::shared_ff_width, .required = true},
                              {.name = "qkv_bias", .field = &ModelKeys::qkv_bias}});
constexpr std::span<const FamilyKey> qwen2_moe_keys = moe_keys, qwen3_moe_keys = qwen2_moe_keys.first(7);

}  // namespace

Family qwen2_family() {
  return {.type = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .standard = {.kv_heads = 32, .norm_eps = 1e-6, .qkv_bias = true},
          .window = qwen_window};
}

Family qwen3_family() {
  return {.type = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .standard = {.kv_heads = 32, .head_dim = 128, .norm_eps = 1e-6, .qk_norm = true},
          .window = qwen_window,
          .output_bias = true};
}

Family qwen2_moe_family() {
  return {.type = "qwen2_moe",
          .architecture = "Qwen2MoeForCausalLM",
          .standard = {.kv_heads = 16, .norm_eps = 1e-6, .qkv_bias = true, .normalize_top_k = false},
          .takes = has_shared_expert_of_qwen,
          .window = qwen2_moe_window,
          .read_layers = read_sparse,
          .put_layers = put_sparse,
          .keys = qwen2_moe_keys};
}

Family qwen3_moe_family() {
  return {.type = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .standard = {.kv_heads = 4, .norm_eps = 1e-6, .qk_norm = true, .normalize_top_k = false},
          .window = qwen3_moe_window,
          .read_layers = read_sparse,
          .put_layers = put_sparse,
          .output_bias = true,
          .keys = qwen3_moe_keys};
}

}  // namespace tessera
