#include "train/decoder.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/attention/attention.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/qk_norm_rope/qk_norm_rope.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "model/linear.hpp"

namespace tessera {

using kernels::Context;

Decoder::Decoder(const Engine& engine, const Deck& deck, std::int64_t capacity)
    : engine_(engine), shape_(model_shape(deck)), capacity_(capacity) {
  ModelShape& s = shape_;
  s.B = s.T = 1;
  auto bytes = [&](std::int64_t elements) { return std::vector<std::byte>(static_cast<std::size_t>(s.bytes_of(elements))); };
  stream_ = bytes(s.C), normed_ = bytes(s.C), projected_ = bytes(s.C), context_ = bytes(s.H * s.D), qkv_ = bytes(s.qkv_width());
  gate_up_ = bytes(2 * s.F), activated_ = bytes(s.F);
  for (std::int64_t l = 0; l < s.L; ++l) keys_.push_back(bytes(capacity * s.G * s.D)), values_.push_back(bytes(capacity * s.G * s.D));
  logits_.resize(static_cast<std::size_t>(s.V));
  rope_.resize(static_cast<std::size_t>(capacity * s.D));
  const ModelKeys& m = deck.model;
  kernels::rope_table(rope_.data(), 0, capacity, s.D, m.rope_theta,
                      {.factor = m.rope_scaling == "llama3" ? m.rope_factor : 0,
                       .low_freq_factor = m.rope_low_freq_factor,
                       .high_freq_factor = m.rope_high_freq_factor,
                       .original_context = m.rope_original_context});
}

void Decoder::linear(void* y, const void* x, const std::string& tensor, std::int64_t N, std::int64_t K, const std::string& bias) {
  const kernels::Gemm product = linear::forward({1, N, K, shape_.dtype}, y, x, {weight(tensor)}, bias.empty() ? nullptr : weight(bias));
  const std::size_t needed = kernels::gemm_workspace_bytes(product) + 64;
  if (workspace_.size() < needed) workspace_.resize(needed);
  void* aligned = workspace_.data();
  std::size_t space = workspace_.size();
  std::align(64, needed - 64, aligned, space);
  kernels::gemm({{static_cast<std::byte*>(aligned), needed - 64}, false}, product);
}

void Decoder::norm(const std::string& tensor) {
  rmsnorm_forward(Context{}, {.out = normed_.data(),
                              .x = stream_.data(),
                              .weight = weight(tensor),
                              .rows = 1,
                              .C = shape_.C,
                              .eps = shape_.norm_eps,
                              .dtype = shape_.dtype});
}

void Decoder::layer(int number) {
  const ModelShape& s = shape_;
  const std::string attention = fmt::format("layers.{}.attention.", number), mlp = fmt::format("layers.{}.mlp.", number);
  auto* q = qkv_.data();
  auto* k = q + s.bytes_of(s.H * s.D);
  auto* v = k + s.bytes_of(s.G * s.D);
  norm(attention + "norm");
  linear(qkv_.data(), normed_.data(), attention + "wq", s.qkv_width(), s.C, s.qkv_bias ? attention + "bq" : "");
  const float* table = rope_.data() + length_ * s.D;
  if (s.qk_norm) {
    qk_norm_rope_forward(Context{}, {.out = q,
                                     .x = q,
                                     .q_norm = weight(attention + "q_norm"),
                                     .k_norm = weight(attention + "k_norm"),
                                     .table = table,
                                     .M = 1,
                                     .T = 1,
                                     .H = s.H,
                                     .G = s.G,
                                     .D = s.D,
                                     .eps = s.norm_eps,
                                     .dtype = s.dtype});
  } else {
    rope(Context{}, {.x = q, .table = table, .M = 1, .T = 1, .heads = s.H + s.G, .D = s.D, .stride = s.qkv_width(), .dtype = s.dtype});
  }
  const auto row = static_cast<std::size_t>(s.bytes_of(s.G * s.D)), l = static_cast<std::size_t>(number);
  std::memcpy(keys_[l].data() + static_cast<std::size_t>(length_) * row, k, row);
  std::memcpy(values_[l].data() + static_cast<std::size_t>(length_) * row, v, row);
  attention_decode(Context{}, {.out = context_.data(),
                               .q = q,
                               .cache_k = keys_[l].data(),
                               .cache_v = values_[l].data(),
                               .capacity = capacity_,
                               .length = length_ + 1,
                               .shape = {.B = 1, .T = 1, .H = s.H, .G = s.G, .D = s.D, .dtype = s.dtype}});
  linear(projected_.data(), context_.data(), attention + "wo", s.C, s.H * s.D);
  add(Context{}, stream_.data(), stream_.data(), projected_.data(), s.C, s.dtype);

  norm(mlp + "norm");
  linear(gate_up_.data(), normed_.data(), mlp + "w_gate", 2 * s.F, s.C);
  swiglu_forward(Context{}, {.out = activated_.data(), .gate_up = gate_up_.data(), .M = 1, .F = s.F, .dtype = s.dtype});
  linear(projected_.data(), activated_.data(), mlp + "w_down", s.C, s.F);
  add(Context{}, stream_.data(), stream_.data(), projected_.data(), s.C, s.dtype);
}

const std::vector<float>& Decoder::next(std::int32_t token) {
  const ModelShape& s = shape_;
  TESSERA_REQUIRE(length_ < capacity_, "the cache holds {} tokens", capacity_);
  embedding_forward(Context{},
                    {.out = stream_.data(), .table = weight("embedding.weight"), .tokens = &token, .M = 1, .C = s.C, .dtype = s.dtype});
  for (int l = 0; l < s.L; ++l) layer(l);
  norm("head.norm");
  // Logits in fp32, whatever the compute type.
  kernels::Gemm product =
      linear::forward({1, s.V, s.C, s.dtype}, logits_.data(), normed_.data(), {weight(s.tied ? "embedding.weight" : "head.weight")});
  product.out = DType::f32;
  workspace_.resize(std::max(workspace_.size(), kernels::gemm_workspace_bytes(product) + 64));
  void* aligned = workspace_.data();
  std::size_t space = workspace_.size();
  std::align(64, kernels::gemm_workspace_bytes(product), aligned, space);
  kernels::gemm({{static_cast<std::byte*>(aligned), kernels::gemm_workspace_bytes(product)}, false}, product);
  ++length_;
  return logits_;
}

std::int32_t sample_token(const std::vector<float>& logits, double temperature, std::int64_t top_k, std::uint64_t seed,
                          std::int64_t position) {
  if (temperature <= 0) return static_cast<std::int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const std::size_t considered = top_k > 0 ? std::min(static_cast<std::size_t>(top_k), order.size()) : order.size();
  std::partial_sort(
      order.begin(), order.begin() + static_cast<std::ptrdiff_t>(considered), order.end(),
      [&](std::int32_t a, std::int32_t b) { return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)]; });
  std::vector<double> cumulative;
  double sum = 0;
  const double largest = logits[static_cast<std::size_t>(order[0])];
  for (std::size_t i = 0; i < considered; ++i)
    cumulative.push_back(sum += std::exp((logits[static_cast<std::size_t>(order[i])] - largest) / temperature));
  const double uniform = static_cast<double>(kernels::counter_random(seed, 0x67656e, static_cast<std::uint64_t>(position)) >> 11) * 0x1p-53;
  const auto at = std::upper_bound(cumulative.begin(), cumulative.end(), uniform * sum) - cumulative.begin();
  return order[std::min(static_cast<std::size_t>(at), considered - 1)];
}

}  // namespace tessera
