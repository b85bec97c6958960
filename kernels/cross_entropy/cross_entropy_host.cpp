// Per chunk of tokens: logits = x W^T (fp32), a row-wise pass that turns them into losses and d_logits, then d_x = d_logits W and
// d_weight += d_logits^T x. The row pass is bound by memory: a row (V floats) is read once from memory and revisited in the second-level
// cache.
#include <algorithm>
#include <cmath>

#include "base/check.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/gemm/vector.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels {
namespace {

std::size_t aligned(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

struct Chunk {
  float* logits = nullptr;   // (m,V)
  void* d_logits = nullptr;  // (m,V) of dtype; the logits themselves in fp32
  std::int64_t first = 0, m = 0;
};

Gemm logits_gemm(const LinearCrossEntropy& l, const Chunk& c) {
  return {.c = c.logits,
          .a = static_cast<const std::byte*>(l.x) + static_cast<std::size_t>(c.first * l.C) * size_of(l.dtype),
          .b = l.weight,
          .M = c.m,
          .N = l.V,
          .K = l.C,
          .b_transposed = true,
          .in = l.dtype,
          .out = DType::f32};
}

Gemm d_x_gemm(const LinearCrossEntropy& l, const Chunk& c) {
  return {.c = static_cast<std::byte*>(l.d_x) + static_cast<std::size_t>(c.first * l.C) * size_of(l.dtype),
          .a = c.d_logits,
          .b = l.weight,
          .M = c.m,
          .N = l.C,
          .K = l.V,
          .in = l.dtype,
          .out = l.dtype};
}

Gemm d_weight_gemm(const LinearCrossEntropy& l, const Chunk& c) {
  return {.c = l.d_weight,
          .a = c.d_logits,
          .b = static_cast<const std::byte*>(l.x) + static_cast<std::size_t>(c.first * l.C) * size_of(l.dtype),
          .M = l.V,
          .N = l.C,
          .K = c.m,
          .a_transposed = true,
          .accumulate = true,
          .in = l.dtype,
          .out = DType::f32};
}

float row_maximum(const float* row, std::int64_t V) {
  Lanes m0 = broadcast(-INFINITY), m1 = m0, m2 = m0, m3 = m0;
  std::int64_t i = 0;
  for (; i + 4 * lane_count <= V; i += 4 * lane_count) {
    m0 = max(m0, load(row + i));
    m1 = max(m1, load(row + i + lane_count));
    m2 = max(m2, load(row + i + 2 * lane_count));
    m3 = max(m3, load(row + i + 3 * lane_count));
  }
  float most = maximum(max(max(m0, m1), max(m2, m3)));
  for (; i < V; ++i) most = std::max(most, row[i]);
  return most;
}

// Sum of e^(row - shift); `store_exponentials` leaves the terms in the row for the gradient.
template <bool store_exponentials>
double row_exponentials(float* row, std::int64_t V, float shift) {
  // Partial sums of 1024 terms in fp32 and those in fp64: the error does not grow with V.
  constexpr std::int64_t part = 1024;
  double total = 0;
  for (std::int64_t begin = 0; begin < V; begin += part) {
    std::int64_t end = std::min(V, begin + part), i = begin;
    Lanes s0{}, s1{};
    for (; i + 2 * lane_count <= end; i += 2 * lane_count) {
      Lanes e0 = exp(load(row + i) - shift), e1 = exp(load(row + i + lane_count) - shift);
      if constexpr (store_exponentials) store(row + i, e0), store(row + i + lane_count, e1);
      s0 += e0;
      s1 += e1;
    }
    for (; i < end; i += lane_count) {
      std::int64_t n = std::min(lane_count, end - i);
      Lanes e = exp(load_first(row + i, n) - shift);
      if constexpr (store_exponentials) store_first(row + i, e, n);
      s0 += load_first(reinterpret_cast<const float*>(&e), n);
    }
    total += static_cast<double>(sum(s0 + s1));
  }
  return total;
}

template <class T>
void scale_row(T* to, const float* from, std::int64_t V, float factor) {
  std::int64_t i = 0;
  for (; i + lane_count <= V; i += lane_count) store(to + i, load(from + i) * factor);
  if (i < V) store_first(to + i, load_first(from + i, V - i) * factor, V - i);
}

void loss_row(const SoftmaxLossRows& s, std::int64_t r) {
  float* row = s.logits + r * s.V;
  std::int64_t target = s.targets[r];
  float target_logit = row[target], shift = row_maximum(row, s.V);
  double total = s.d_logits ? row_exponentials<true>(row, s.V, shift) : row_exponentials<false>(row, s.V, shift);
  s.losses[r] = static_cast<float>(std::log(total) + static_cast<double>(shift) - static_cast<double>(target_logit));
  if (!s.d_logits) return;
  // The target's probability minus one is formed before it is rounded to dtype.
  float factor = static_cast<float>(static_cast<double>(s.grad_scale) / total);
  float at_target = static_cast<float>((static_cast<double>(row[target]) / total - 1) * static_cast<double>(s.grad_scale));
  if (s.dtype == DType::f32) {
    float* to = static_cast<float*>(s.d_logits) + r * s.V;
    scale_row(to, row, s.V, factor);
    to[target] = at_target;
  } else {
    bf16* to = static_cast<bf16*>(s.d_logits) + r * s.V;
    scale_row(to, row, s.V, factor);
    to[target] = bf16(at_target);
  }
}

struct Layout {
  std::int64_t chunk = 0;
  std::size_t logits = 0, d_logits = 0, gemm = 0;  // bytes
};

Layout layout_of(const LinearCrossEntropy& l) {
  TESSERA_REQUIRE(l.M > 0 && l.C > 0 && l.V > 0 && l.chunk > 0, "M={} C={} V={} chunk={}", l.M, l.C, l.V, l.chunk);
  Layout s;
  s.chunk = std::min(l.chunk, l.M);
  auto elements = static_cast<std::size_t>(s.chunk * l.V);
  s.logits = aligned(elements * sizeof(float));
  s.d_logits = l.dtype == DType::f32 ? 0 : aligned(elements * size_of(l.dtype));
  for (std::int64_t m : {s.chunk, l.M % s.chunk}) {
    if (m == 0) continue;
    Chunk c{.m = m};
    LinearCrossEntropy shape = l;
    shape.x = shape.d_x = nullptr;
    for (const Gemm& g : {logits_gemm(shape, c), d_x_gemm(shape, c), d_weight_gemm(shape, c)})
      s.gemm = std::max(s.gemm, gemm_workspace_bytes(g));
  }
  return s;
}

void check_targets(const LinearCrossEntropy& l) {
  for (std::int64_t i = 0; i < l.M; ++i)
    TESSERA_REQUIRE(l.targets[i] >= 0 && l.targets[i] < l.V, "target {} of token {} is outside the vocabulary of {}", l.targets[i], i, l.V);
}

}  // namespace

std::size_t linear_cross_entropy_workspace_bytes(const LinearCrossEntropy& l) {
  Layout s = layout_of(l);
  return s.logits + s.d_logits + s.gemm;
}

void softmax_loss_rows(const SoftmaxLossRows& s) {
  parallel_ranges(s.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) loss_row(s, r);
  });
}

void linear_cross_entropy(const Context& context, const LinearCrossEntropy& l) {
  Layout s = layout_of(l);
  TESSERA_REQUIRE(context.workspace.size() >= s.logits + s.d_logits + s.gemm, "workspace of {} bytes, {} needed", context.workspace.size(),
                  s.logits + s.d_logits + s.gemm);
  check_targets(l);
  Context inner = context;
  inner.workspace = context.workspace.subspan(s.logits + s.d_logits);
  bool gradient = l.d_x || l.d_weight;
  for (std::int64_t first = 0; first < l.M; first += s.chunk) {
    Chunk c{.logits = reinterpret_cast<float*>(context.workspace.data()),
            .d_logits = context.workspace.data() + (s.d_logits ? s.logits : 0),
            .first = first,
            .m = std::min(s.chunk, l.M - first)};
    gemm(inner, logits_gemm(l, c));
    softmax_loss_rows({.losses = l.losses + first,
                       .logits = c.logits,
                       .d_logits = gradient ? c.d_logits : nullptr,
                       .targets = l.targets + first,
                       .grad_scale = l.grad_scale,
                       .rows = c.m,
                       .V = l.V,
                       .dtype = l.dtype});
    if (l.d_x) gemm(inner, d_x_gemm(l, c));
    if (l.d_weight) gemm(inner, d_weight_gemm(l, c));
  }
  double total = 0;
  for (std::int64_t i = 0; i < l.M; ++i) total += static_cast<double>(l.losses[i]);
  if (l.loss_sum) *l.loss_sum = total;
}

}  // namespace tessera::kernels
