// The head's loss over rows of logits, and its gradient. Who calls it holds the logits of a chunk of tokens at a time
// (src/model/texts/head.cpp).
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// What a logit counts as: cap tanh(scale x / cap), which lies within the cap; without a cap (0) scale x.
struct LogitMap {
  float scale = 1, cap = 0;
  friend bool operator==(const LogitMap&, const LogitMap&) = default;
};

/// Losses of `rows` rows of logits, which are destroyed: weight * (log sum exp(logits) - logits[target]), sums in fp32 or better. With
/// d_logits also weight * (softmax - onehot) * *grad_scale in dtype. A row of weight 0 is not read: its loss is 0, and so is its gradient.
/// A target of another row that is not in [0, V) is an error: the host's code throws before any work; a GPU's, which cannot look at
/// targets before it runs, ends the kernel, and the next check of the CUDA runtime throws. The reader of the data refuses such tokens
/// before either.
struct SoftmaxLossRows {
  float* losses = nullptr;                ///< (rows)
  float* logits = nullptr;                ///< (rows,V)
  void* d_logits = nullptr;               ///< (rows,V) of dtype, or null; may be the logits themselves where dtype is f32
  const std::int32_t* targets = nullptr;  ///< (rows)
  const float* weights = nullptr;         ///< (rows): finite, none below 0
  const float* grad_scale = nullptr;      ///< 1 value, with d_logits
  std::int64_t rows = 0, V = 0;
  DType dtype = DType::f32;
  LogitMap map = {};  ///< losses are those of mapped logits, d_logits the gradient of the logits as they are given
};
TESSERA_OP(softmax_loss_rows, (const Context& context, const SoftmaxLossRows& arguments), (context, arguments))

/// x (n) as the map says, in place.
TESSERA_OP(map_logits, (const Context& context, float* x, std::int64_t n, const LogitMap& map), (context, x, n, map))

/// The sum of M losses in fp64, in a fixed order that does not depend on threads.
struct SumLosses {
  double* sum = nullptr;  ///< 1 value
  const float* losses = nullptr;
  std::int64_t M = 0;
};
TESSERA_OP(sum_losses, (const Context& context, const SumLosses& arguments), (context, arguments))

}  // namespace tessera::kernels
