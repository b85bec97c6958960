// Products of linear layers whose operands are rounded to codes of 8 bits where they are multiplied (precision.fp8).
#pragma once
#include "kernels/fp8_history/fp8_history.hpp"
#include "model/record/recorder.hpp"

namespace tessera {

/// How one of the three products of a linear layer is computed: of its operands as they lie, or of their codes, which it makes in its
/// workspace; those of a weight of which there is a copy were made when it was updated.
class Multiply {
 public:
  /// Of the matrix `w` and those joined to it.
  Multiply(Recorder& r, const std::string& w, products::Product product);
  /// What calls of it touch beside their operands.
  std::vector<Touch> with_scales(std::vector<Touch> touches) const;
  /// `g`, and of codes which they are: what gemm_pack_b takes to make a copy of the weight that lasts. Throws Error(usage) where a GPU has
  /// no such product.
  kernels::Gemm stored(kernels::Gemm g) const;
  std::size_t workspace_bytes(const kernels::Gemm& g) const;
  /// `g` as products::forward and the others make it.
  void operator()(const At& at, const kernels::Gemm& g) const;
  /// Bytes that are read and written to make the codes.
  double quantised_bytes(const kernels::Gemm& g) const;

 private:
  kernels::Fp8Delayed delayed(const At& at, kernels::Fp8Tensor tensor) const;

  Fp8Recipe recipe_;
  std::string w_;
  products::Product product_;
  kernels::Backend backend_;
  Value multipliers_ = {}, largest_ = {};               ///< of delayed scaling
  Value weight_multiplier_ = {}, weight_largest_ = {};  ///< of scales of whole matrices
  std::int64_t input_ = 0, gradient_ = 0;               ///< histories of the matrix
};

}  // namespace tessera
