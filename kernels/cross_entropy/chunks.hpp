// The head's walk over chunks of tokens, the same for every backend: per chunk logits = x W^T (fp32), a row pass that turns them into
// losses and d_logits, then d_x = d_logits W and d_weight += d_logits^T x.
#pragma once
#include <algorithm>

#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::kernels {

struct LossChunk {
  float* logits = nullptr;   // (m,V)
  void* d_logits = nullptr;  // (m,V) of dtype; the logits themselves in fp32
  std::int64_t first = 0, m = 0;
};

inline Gemm logits_gemm(const LinearCrossEntropy& l, const LossChunk& c) {
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

inline Gemm d_x_gemm(const LinearCrossEntropy& l, const LossChunk& c) {
  return {.c = static_cast<std::byte*>(l.d_x) + static_cast<std::size_t>(c.first * l.C) * size_of(l.dtype),
          .a = c.d_logits,
          .b = l.weight,
          .M = c.m,
          .N = l.C,
          .K = l.V,
          .in = l.dtype,
          .out = l.dtype};
}

inline Gemm d_weight_gemm(const LinearCrossEntropy& l, const LossChunk& c) {
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

/// How the workspace is cut, in bytes: logits, d_logits (none in fp32), workspace of the products.
struct LossLayout {
  std::int64_t chunk = 0;
  std::size_t logits = 0, d_logits = 0, gemm = 0;
  std::size_t bytes() const { return logits + d_logits + gemm; }

  LossLayout(const LinearCrossEntropy& l, std::size_t alignment, std::size_t (*gemm_bytes)(const Gemm&)) : chunk(std::min(l.chunk, l.M)) {
    const auto aligned = [alignment](std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
    const auto elements = static_cast<std::size_t>(chunk * l.V);
    logits = aligned(elements * sizeof(float));
    d_logits = l.dtype == DType::f32 ? 0 : aligned(elements * size_of(l.dtype));
    for (const std::int64_t m : {chunk, l.M % chunk}) {
      if (m == 0) continue;
      const LossChunk c{.m = m};
      LinearCrossEntropy shape = l;
      shape.x = shape.d_x = nullptr;
      for (const Gemm& g : {logits_gemm(shape, c), d_x_gemm(shape, c), d_weight_gemm(shape, c)}) gemm = std::max(gemm, gemm_bytes(g));
    }
  }
};

/// Runs the chunks in their order with a backend's gemm and softmax_loss_rows.
inline void run_loss_chunks(const Context& context, const LinearCrossEntropy& l, const LossLayout& s,
                            void (*gemm)(const Context&, const Gemm&), void (*rows)(const Context&, const SoftmaxLossRows&)) {
  Context inner = context;
  inner.workspace = context.workspace.subspan(s.logits + s.d_logits);
  const bool gradient = l.d_x || l.d_weight;
  for (std::int64_t first = 0; first < l.M; first += s.chunk) {
    const LossChunk c{.logits = reinterpret_cast<float*>(context.workspace.data()),
                      .d_logits = context.workspace.data() + (s.d_logits ? s.logits : 0),
                      .first = first,
                      .m = std::min(s.chunk, l.M - first)};
    gemm(inner, logits_gemm(l, c));
    rows(context, {.losses = l.losses + first,
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
}

}  // namespace tessera::kernels
