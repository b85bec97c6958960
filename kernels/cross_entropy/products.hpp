// The three products of the head, of a chunk of tokens: the same on every backend.
#pragma once
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/gemm/gemm.hpp"

namespace tessera::kernels {

/// Tokens [first, first + m) and where their logits lie.
struct Chunk {
  float* logits = nullptr;   ///< (m,V)
  void* d_logits = nullptr;  ///< (m,V) of dtype; the logits themselves in fp32
  std::int64_t first = 0, m = 0;
};

/// logits (m,V) = x weight^T
inline Gemm logits_product(const LinearCrossEntropy& l, const Chunk& c) {
  return {.c = c.logits,
          .a = static_cast<const std::byte*>(l.x) + static_cast<std::size_t>(c.first * l.C) * size_of(l.dtype),
          .b = l.packed_logits ? l.packed_logits : l.weight,
          .M = c.m,
          .N = l.V,
          .K = l.C,
          .b_transposed = true,
          .in = l.dtype,
          .out = DType::f32,
          .b_packed = l.packed_logits != nullptr};
}

/// d_x (m,C) = d_logits weight
inline Gemm d_x_product(const LinearCrossEntropy& l, const Chunk& c) {
  return {.c = static_cast<std::byte*>(l.d_x) + static_cast<std::size_t>(c.first * l.C) * size_of(l.dtype),
          .a = c.d_logits,
          .b = l.packed_d_x ? l.packed_d_x : l.weight,
          .M = c.m,
          .N = l.C,
          .K = l.V,
          .in = l.dtype,
          .out = l.dtype,
          .b_packed = l.packed_d_x != nullptr};
}

/// d_weight (V,C) += d_logits^T x
inline Gemm d_weight_product(const LinearCrossEntropy& l, const Chunk& c) {
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

}  // namespace tessera::kernels
