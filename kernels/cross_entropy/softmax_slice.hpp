// The head's loss where each rank holds the logits of a slice of the vocabulary (Megatron-LM, arXiv:1909.08053, section 3): every rank sums
// over its slice, the ranks gather these sums, which are three numbers a row, and each makes losses and its slice's gradient from them.
#pragma once
#include "kernels/cross_entropy/cross_entropy.hpp"

namespace tessera::kernels {

/// Of a row over a slice: the largest logit, the sum of e^(logit - largest), and the target's logit, 0 where the target is in another slice
/// or none.
struct SoftmaxSliceSums {
  double* sums = nullptr;                   ///< (rows,3)
  const float* logits = nullptr;            ///< (rows,V)
  const std::int32_t* targets = nullptr;    ///< (rows) of the whole vocabulary
  std::int64_t rows = 0, V = 0, first = 0;  ///< V tokens of the vocabulary from `first` on
  LogitMap map = {};                        ///< sums are those of mapped logits
};
TESSERA_OP(softmax_slice_sums, (const Context& context, const SoftmaxSliceSums& arguments), (context, arguments))

/// Losses and, with d_logits, weight * (softmax - onehot) * *grad_scale of the slice, as softmax_loss_rows makes them of whole rows. A head
/// in two passes keeps the sums: one call makes losses from them, and a later one gradients with weights of either sign, from logits that
/// are computed again.
struct SoftmaxSliceLoss {
  float* losses = nullptr;                ///< (rows): the same on all ranks; null if only d_logits are wanted
  const float* logits = nullptr;          ///< (rows,V)
  void* d_logits = nullptr;               ///< (rows,V) of dtype, or null; may be the logits themselves where dtype is f32
  const double* sums = nullptr;           ///< (slices,rows,3), in the order of the vocabulary
  const std::int32_t* targets = nullptr;  ///< (rows)
  const float* weights = nullptr;         ///< (rows): finite, of either sign
  const float* grad_scale = nullptr;      ///< 1 value, with d_logits
  std::int64_t rows = 0, V = 0, first = 0, slices = 1;
  DType dtype = DType::f32;
  LogitMap map = {};
};
TESSERA_OP(softmax_slice_loss, (const Context& context, const SoftmaxSliceLoss& arguments), (context, arguments))

}  // namespace tessera::kernels
