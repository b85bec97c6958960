#include "model/table/parameters.hpp"

#include <fmt/format.h>

#include <cmath>

#include "model/table/frozen.hpp"
#include "model/table/lora.hpp"

namespace tessera {
namespace {

/// How Hugging Face calls the tensors of experts: Mixtral in its way, all others as Qwen does.
struct ExpertNames {
  const char *router, *expert, *gate, *up, *down;
};
ExpertNames expert_names(const ModelKeys& m) {
  if (is_mixtral(m)) return {"block_sparse_moe.gate.weight", "block_sparse_moe.experts.", "w1.weight", "w3.weight", "w2.weight"};
  return {"mlp.gate.weight", "mlp.experts.", "gate_proj.weight", "up_proj.weight", "down_proj.weight"};
}

/// Norm, router and the expert of all tokens belong to the layer's unit; the experts' matrices are a unit of their own, in which matrices
/// that one product takes are neighbours: (E, 2F, C), then (E, C, F). No axis cuts a tensor: tensor-parallel ranks share the tokens.
void add_experts(std::vector<Parameter>& table, const ModelKeys& m, int layer) {
  const std::int64_t C = m.width, F = m.expert_ff_width, S = m.shared_ff_width;
  const std::string ours = fmt::format("layers.{}.moe.", layer), theirs = fmt::format("model.layers.{}.", layer);
  const ExpertNames names = expert_names(m);
  const double std = m.init_std, residual_std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
  const auto matrix = [&](Part part, const std::string& name, std::int64_t rows, std::int64_t columns, double s, bool joined,
                          const std::string& exported) {
    table.push_back({.name = ours + name,
                     .shape = {rows, columns},
                     .part = part,
                     .layer = layer,
                     .std = s,
                     .decay = true,
                     .joined = joined,
                     .export_name = theirs + exported});
  };
  table.push_back(
      {.name = ours + "norm", .shape = {C}, .layer = layer, .init = Init::ones, .export_name = theirs + "post_attention_layernorm.weight"});
  matrix(Part::layer, "router", m.experts, C, std, false, names.router);
  if (S > 0) {
    matrix(Part::layer, "shared_gate", 1, C, std, true, "mlp.shared_expert_gate.weight");
    matrix(Part::shared, "shared.w_gate", S, C, std, false, "mlp.shared_expert.gate_proj.weight");
    matrix(Part::shared, "shared.w_up", S, C, std, true, "mlp.shared_expert.up_proj.weight");
    matrix(Part::shared, "shared.w_down", C, S, residual_std, false, "mlp.shared_expert.down_proj.weight");
  }
  // No class that is exported has it.
  if (m.router_balance == RouterBalance::bias)
    table.push_back(
        {.name = ours + "router_bias", .shape = {m.experts}, .layer = layer, .init = Init::zeros, .trained = false, .export_name = ""});
  const auto of_expert = [&](std::int64_t e, const char* name) { return fmt::format("experts.{}.{}", e, name); };
  const auto exported = [&](std::int64_t e, const char* name) { return fmt::format("{}{}.{}", names.expert, e, name); };
  for (std::int64_t e = 0; e < m.experts; ++e) {
    matrix(Part::experts, of_expert(e, "w_gate"), F, C, std, e > 0, exported(e, names.gate));
    table.back().expert = static_cast<int>(e);
    matrix(Part::experts, of_expert(e, "w_up"), F, C, std, true, exported(e, names.up));
    table.back().expert = static_cast<int>(e);
  }
  for (std::int64_t e = 0; e < m.experts; ++e) {
    matrix(Part::experts, of_expert(e, "w_down"), C, F, residual_std, e > 0, exported(e, names.down));
    table.back().expert = static_cast<int>(e);
  }
}

void add_layer(std::vector<Parameter>& table, const ModelKeys& m, int layer) {
  const std::int64_t C = m.width, D = m.head_dim, Q = m.heads * D, K = m.kv_heads * D, F = m.ff_width;
  const std::string ours = fmt::format("layers.{}.", layer), theirs = fmt::format("model.layers.{}.", layer);
  // Projections that write into the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
  const double std = m.init_std, residual_std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
  auto vector = [&](const char* name, std::int64_t n, Init init, const char* exported, int tp_dim = -1, bool joined = false) {
    table.push_back({.name = ours + name,
                     .shape = {n},
                     .layer = layer,
                     .init = init,
                     .joined = joined,
                     .tp_dim = tp_dim,
                     .export_name = theirs + exported});
  };
  auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns, double s, int tp_dim, bool joined, const char* exported) {
    table.push_back({.name = ours + name,
                     .shape = {rows, columns},
                     .layer = layer,
                     .std = s,
                     .decay = true,
                     .joined = joined,
                     .tp_dim = tp_dim,
                     .export_name = theirs + exported});
  };
  vector("attention.norm", C, Init::ones, "input_layernorm.weight");
  matrix("attention.wq", Q, C, std, 0, false, "self_attn.q_proj.weight");
  matrix("attention.wk", K, C, std, 0, true, "self_attn.k_proj.weight");
  matrix("attention.wv", K, C, std, 0, true, "self_attn.v_proj.weight");
  if (m.qkv_bias) {
    vector("attention.bq", Q, Init::zeros, "self_attn.q_proj.bias", 0);
    vector("attention.bk", K, Init::zeros, "self_attn.k_proj.bias", 0, true);
    vector("attention.bv", K, Init::zeros, "self_attn.v_proj.bias", 0, true);
  }
  if (m.qk_norm) {
    vector("attention.q_norm", D, Init::ones, "self_attn.q_norm.weight");
    vector("attention.k_norm", D, Init::ones, "self_attn.k_norm.weight");
  }
  matrix("attention.wo", C, Q, residual_std, 1, false, "self_attn.o_proj.weight");
  if (m.experts > 0) return add_experts(table, m, layer);
  vector("mlp.norm", C, Init::ones, "post_attention_layernorm.weight");
  matrix("mlp.w_gate", F, C, std, 0, false, "mlp.gate_proj.weight");
  matrix("mlp.w_up", F, C, std, 0, true, "mlp.up_proj.weight");
  matrix("mlp.w_down", C, F, residual_std, 1, false, "mlp.down_proj.weight");
}

}  // namespace

std::vector<Parameter> parameter_table(const ModelKeys& m) {
  std::vector<Parameter> table;
  table.push_back({.name = "embedding.weight",
                   .shape = {m.vocab, m.width},
                   .part = Part::embedding,
                   .std = m.init_std,
                   .decay = true,
                   .tp_dim = 0,
                   .export_name = "model.embed_tokens.weight"});
  for (int layer = 0; layer < m.layers; ++layer) add_layer(table, m, layer);
  table.push_back({.name = "head.norm", .shape = {m.width}, .part = Part::head, .init = Init::ones, .export_name = "model.norm.weight"});
  if (!m.tied)
    table.push_back({.name = "head.weight",
                     .shape = {m.vocab, m.width},
                     .part = Part::head,
                     .std = m.init_std,
                     .decay = true,
                     .tp_dim = 0,
                     .export_name = "lm_head.weight"});
  add_adapters(table, m.lora);
  freeze(table, m.freeze);
  return table;
}

bool is_mixtral(const ModelKeys& m) { return m.experts > 0 && m.shared_ff_width == 0 && m.normalize_top_k && !m.qk_norm && !m.qkv_bias; }

std::int64_t parameter_count(const std::vector<Parameter>& table) {
  std::int64_t n = 0;
  for (const auto& p : table) n += p.shape.elements();
  return n;
}

}  // namespace tessera
