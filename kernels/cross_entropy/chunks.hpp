// The head's walk over chunks of tokens, the same for every backend: per chunk logits = x W^T (fp32), a row pass that turns them into
// losses and d_logits, then d_x = d_logits W and d_weight += d_logits^T x.
#pragma once
#include <algorithm>

#include "kernels/cross_entropy/products.hpp"

namespace tessera::kernels {

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
      const Chunk c{.m = m};
      LinearCrossEntropy shape = l;
      shape.x = shape.d_x = nullptr;
      for (const Gemm& g : {logits_product(shape, c), d_x_product(shape, c), d_weight_product(shape, c)})
        gemm = std::max(gemm, gemm_bytes(g));
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
    const Chunk c{.logits = reinterpret_cast<float*>(context.workspace.data()),
                  .d_logits = context.workspace.data() + (s.d_logits ? s.logits : 0),
                  .first = first,
                  .m = std::min(s.chunk, l.M - first)};
    gemm(inner, logits_product(l, c));
    rows(context, {.losses = l.losses + first,
                   .logits = c.logits,
                   .d_logits = gradient ? c.d_logits : nullptr,
                   .targets = l.targets + first,
                   .grad_scale = l.grad_scale,
                   .rows = c.m,
                   .V = l.V,
                   .dtype = l.dtype});
    if (l.d_x) gemm(inner, d_x_product(l, c));
    if (l.d_weight) gemm(inner, d_weight_product(l, c));
  }
}

}  // namespace tessera::kernels
