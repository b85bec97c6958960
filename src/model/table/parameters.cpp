#include "model/table/parameters.hpp"

#include <fmt/format.h>

#include <cmath>

#include "families/names.hpp"
#include "model/table/frozen.hpp"
#include "model/table/lora.hpp"

namespace tessera {
namespace {

bool norms_input(const ModelKeys& m) { return m.norm_placement != NormPlacement::post; }
bool norms_output(const ModelKeys& m) { return m.norm_placement == NormPlacement::post || m.norm_placement == NormPlacement::both; }
/// Beside attention the feed-forward block reads attention's norm.
bool norms_mlp_input(const ModelKeys& m) { return norms_input(m) && m.norm_placement != NormPlacement::parallel; }
/// With which a norm scales by 1.
Init norm_init(const ModelKeys& m) { return m.norm_form == NormForm::one_plus_weight ? Init::zeros : Init::ones; }

/// A norm's weight, and its bias where it has one.
void add_norm(std::vector<Parameter>& table, const ModelKeys& m, Parameter norm) {
  norm.init = norm_init(m);
  table.push_back(norm);
  if (m.norm_form != NormForm::layer_norm) return;
  norm.name += "_bias", norm.init = Init::zeros;
  table.push_back(std::move(norm));
}

/// Norm, router and the expert of all tokens belong to the layer's unit; the experts' matrices are a unit of their own, in which matrices
/// that one product takes are neighbours: (E, 2F, C), then (E, C, F), then biases. No axis cuts a tensor: tensor-parallel ranks share the
/// tokens.
void add_experts(std::vector<Parameter>& table, const ModelKeys& m, int layer) {
  const std::int64_t C = m.width, F = m.expert_ff_width, S = m.shared_ff_width;
  const std::string ours = fmt::format("layers.{}.moe.", layer);
  const double std = m.init_std, residual_std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
  const auto matrix = [&](Part part, const std::string& name, std::int64_t rows, std::int64_t columns, double s, bool joined) {
    table.push_back(
        {.name = ours + name, .shape = {rows, columns}, .part = part, .layer = layer, .std = s, .decay = true, .joined = joined});
  };
  if (norms_input(m)) add_norm(table, m, {.name = ours + "norm", .shape = {C}, .layer = layer});
  if (norms_output(m)) add_norm(table, m, {.name = ours + "post_norm", .shape = {C}, .layer = layer});
  matrix(Part::layer, "router", m.experts, C, std, false);
  if (m.expert_bias) table.push_back({.name = ours + "b_router", .shape = {m.experts}, .layer = layer, .init = Init::zeros});
  if (S > 0) {
    if (m.shared_gate) matrix(Part::layer, "shared_gate", 1, C, std, true);
    matrix(Part::shared, "shared.w_gate", S, C, std, false);
    matrix(Part::shared, "shared.w_up", S, C, std, true);
    matrix(Part::shared, "shared.w_down", C, S, residual_std, false);
  }
  if (m.router_balance == RouterBalance::bias)
    table.push_back({.name = ours + "router_bias", .shape = {m.experts}, .layer = layer, .init = Init::zeros, .trained = false});
  const auto of_expert = [&](std::int64_t e, const char* name) { return fmt::format("experts.{}.{}", e, name); };
  for (std::int64_t e = 0; e < m.experts; ++e) {
    matrix(Part::experts, of_expert(e, "w_gate"), F, C, std, e > 0);
    table.back().expert = static_cast<int>(e);
    matrix(Part::experts, of_expert(e, "w_up"), F, C, std, true);
    table.back().expert = static_cast<int>(e);
  }
  for (std::int64_t e = 0; e < m.experts; ++e) {
    matrix(Part::experts, of_expert(e, "w_down"), C, F, residual_std, e > 0);
    table.back().expert = static_cast<int>(e);
  }
  if (!m.expert_bias) return;
  const auto bias = [&](std::int64_t e, const char* name, std::int64_t n, bool joined) {
    table.push_back({.name = ours + of_expert(e, name),
                     .shape = {n},
                     .part = Part::experts,
                     .layer = layer,
                     .expert = static_cast<int>(e),
                     .init = Init::zeros,
                     .joined = joined});
  };
  for (std::int64_t e = 0; e < m.experts; ++e) bias(e, "b_gate", F, e > 0), bias(e, "b_up", F, true);
  for (std::int64_t e = 0; e < m.experts; ++e) bias(e, "b_down", C, e > 0);
}

void add_layer(std::vector<Parameter>& table, const ModelKeys& m, int layer) {
  const std::int64_t C = m.width, D = m.head_dim, Q = m.heads * D, K = m.kv_heads * D, F = m.ff_width;
  const std::string ours = fmt::format("layers.{}.", layer);
  // Projections that write into the residual stream start smaller, so that its variance does not grow with depth (GPT-2).
  const double std = m.init_std, residual_std = m.init_std / std::sqrt(2.0 * static_cast<double>(m.layers));
  auto vector = [&](const char* name, std::int64_t n, Init init, int tp_dim = -1, bool joined = false) {
    table.push_back({.name = ours + name, .shape = {n}, .layer = layer, .init = init, .joined = joined, .tp_dim = tp_dim});
  };
  auto matrix = [&](const char* name, std::int64_t rows, std::int64_t columns, double s, int tp_dim, bool joined) {
    table.push_back(
        {.name = ours + name, .shape = {rows, columns}, .layer = layer, .std = s, .decay = true, .joined = joined, .tp_dim = tp_dim});
  };
  const auto norm = [&](const char* name) { add_norm(table, m, {.name = ours + name, .shape = {C}, .layer = layer}); };
  if (norms_input(m)) norm("attention.norm");
  matrix("attention.wq", Q, C, std, 0, false);
  matrix("attention.wk", K, C, std, 0, true);
  matrix("attention.wv", K, C, std, 0, true);
  if (m.qkv_bias) {
    vector("attention.bq", Q, Init::zeros, 0);
    vector("attention.bk", K, Init::zeros, 0, true);
    vector("attention.bv", K, Init::zeros, 0, true);
  }
  if (m.qk_norm) {
    // Of the whole width each tensor-parallel rank has the weights of its own features.
    vector("attention.q_norm", m.wide_qk_norm ? Q : D, norm_init(m), m.wide_qk_norm ? 0 : -1);
    vector("attention.k_norm", m.wide_qk_norm ? K : D, norm_init(m), m.wide_qk_norm ? 0 : -1);
  }
  if (m.attention_sinks) vector("attention.sinks", m.heads, Init::zeros, 0);
  matrix("attention.wo", C, Q, residual_std, 1, false);
  if (m.attention_out_bias) vector("attention.bo", C, Init::zeros);
  if (norms_output(m)) norm("attention.post_norm");
  if (m.has_experts(layer)) return add_experts(table, m, layer);
  if (norms_mlp_input(m)) norm("mlp.norm");
  if (m.gated) matrix("mlp.w_gate", F, C, std, 0, false);
  matrix("mlp.w_up", F, C, std, 0, m.gated);
  if (m.mlp_bias && m.gated) vector("mlp.b_gate", F, Init::zeros, 0);
  if (m.mlp_bias) vector("mlp.b_up", F, Init::zeros, 0, m.gated);
  if (m.activation == Activation::xielu) {
    // Softplus makes 0.8 and, with the 0.5 that is added to it, 0.8 of them.
    vector("mlp.alpha_p", 1, Init::constant), table.back().value = std::log(std::expm1(0.8));
    vector("mlp.alpha_n", 1, Init::constant, -1, true), table.back().value = std::log(std::expm1(0.3));
  }
  matrix("mlp.w_down", C, F, residual_std, 1, false);
  if (m.mlp_bias) vector("mlp.b_down", C, Init::zeros);
  if (norms_output(m)) norm("mlp.post_norm");
}

}  // namespace

std::vector<Parameter> parameter_table(const ModelKeys& m) {
  std::vector<Parameter> table;
  table.push_back(
      {.name = "embedding.weight", .shape = {m.vocab, m.width}, .part = Part::embedding, .std = m.init_std, .decay = true, .tp_dim = 0});
  if (m.learned_positions > 0)
    table.push_back({.name = "embedding.positions",
                     .shape = {m.learned_positions, m.width},
                     .part = Part::positions,
                     .std = m.init_std,
                     .decay = true});
  for (int layer = 0; layer < m.layers; ++layer) add_layer(table, m, layer);
  add_norm(table, m, {.name = "head.norm", .shape = {m.width}, .part = Part::head});
  if (!m.tied)
    table.push_back(
        {.name = "head.weight", .shape = {m.vocab, m.width}, .part = Part::head, .std = m.init_std, .decay = true, .tp_dim = 0});
  if (m.head_bias) table.push_back({.name = "head.bias", .shape = {m.vocab}, .part = Part::head, .init = Init::zeros, .tp_dim = 0});
  const TensorNames names(m);
  for (Parameter& p : table) p.export_name = names.of(p.name);
  add_adapters(table, m.lora);
  for (Parameter& p : table)  // beside a tensor of several matrices PEFT has one adapter for all of them
    if (p.adapter && names.name(p.name.substr(0, p.name.rfind('.'))).fused != Fused::no) p.export_name.clear();
  freeze(table, m.freeze);
  return table;
}

Parameter of_model(Parameter p) {
  if (!p.tower.empty()) p.name.erase(0, p.tower.size() + 1);
  p.tower.clear();
  return p;
}

std::int64_t parameter_count(const std::vector<Parameter>& table) {
  std::int64_t n = 0;
  for (const auto& p : table) n += p.shape.elements();
  return n;
}

}  // namespace tessera
