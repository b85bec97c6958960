// The head: logits, loss and their gradient in one pass over chunks of tokens. [tokens, V] never exists whole.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// The target of a token that counts for nothing: its loss is 0, and so is its gradient.
inline constexpr std::int32_t no_target = -1;

/// Shapes: M tokens, C width, V vocabulary. loss of a token = log sum exp(logits) - logits[target], sums in fp32 or better.
/// A target that is neither no_target nor in [0, V) is an error: the host's code throws before any work; a GPU's, which cannot look at
/// targets before it runs, ends the kernel, and the next check of the CUDA runtime throws. The reader of the data refuses such tokens
/// before either. With gradients: d_x is overwritten, d_weight (fp32) is added to; both are scaled by grad_scale (1 / tokens of the global
/// batch).
struct LinearCrossEntropy {
  float* losses = nullptr;                ///< (M) loss of each token, not scaled
  double* loss_sum = nullptr;             ///< 1 value: the sum of losses in a fixed order that does not depend on threads
  void* d_x = nullptr;                    ///< (M,C) or null: loss only
  float* d_weight = nullptr;              ///< (V,C) or null: loss only
  const void* x = nullptr;                ///< (M,C) after the final norm
  const void* weight = nullptr;           ///< (V,C)
  const void* packed_logits = nullptr;    ///< weight packed for logits_product (products.hpp), or null
  const void* packed_d_x = nullptr;       ///< weight packed for d_x_product, or null
  const std::int32_t* targets = nullptr;  ///< (M)
  float grad_scale = 1;
  std::int64_t M = 0, C = 0, V = 0;
  std::int64_t chunk = 0;    ///< tokens of logits held at once. Bits depend on it: it is part of the arithmetic.
  DType dtype = DType::f32;  ///< of x, weight, d_x and of the logits' gradient
};
TESSERA_OP(linear_cross_entropy, (const Context& context, const LinearCrossEntropy& arguments), (context, arguments))
TESSERA_WORKSPACE(linear_cross_entropy_workspace_bytes, LinearCrossEntropy)

/// The row pass by itself: losses of `rows` rows of logits, which are destroyed; with d_logits also (softmax - onehot) * grad_scale in
/// dtype.
struct SoftmaxLossRows {
  float* losses = nullptr;                ///< (rows)
  float* logits = nullptr;                ///< (rows,V)
  void* d_logits = nullptr;               ///< (rows,V) of dtype, or null; may be the logits themselves where dtype is f32
  const std::int32_t* targets = nullptr;  ///< (rows), each in [0, V) or no_target
  float grad_scale = 1;
  std::int64_t rows = 0, V = 0;
  DType dtype = DType::f32;
};
TESSERA_OP(softmax_loss_rows, (const Context& context, const SoftmaxLossRows& arguments), (context, arguments))

}  // namespace tessera::kernels
