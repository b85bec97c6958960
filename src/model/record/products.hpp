// The three products of a linear layer y(M,N) = x(M,K) w(N,K)^T.
#pragma once
#include "kernels/gemm/gemm.hpp"

namespace tessera::products {

enum class Product : std::uint8_t { forward, input_gradient, weight_gradient };

struct Dims {
  std::int64_t M, N, K;
  DType dtype;
};

/// A weight matrix: plain, and packed for the product at hand where a packed copy is kept (null otherwise).
struct Weight {
  const void* plain = nullptr;
  const void* packed = nullptr;
};
inline kernels::Gemm with_weight(kernels::Gemm g, const Weight& w) {
  g.b = w.packed ? w.packed : w.plain;
  g.b_packed = w.packed != nullptr;
  return g;
}
inline kernels::Gemm forward(const Dims& d, void* y, const void* x, const Weight& w, const void* bias = nullptr) {
  return with_weight({.c = y, .a = x, .M = d.M, .N = d.N, .K = d.K, .b_transposed = true, .in = d.dtype, .out = d.dtype, .bias = bias}, w);
}
inline kernels::Gemm input_gradient(const Dims& d, void* dx, const void* dy, const Weight& w) {
  return with_weight({.c = dx, .a = dy, .M = d.M, .N = d.K, .K = d.N, .in = d.dtype, .out = d.dtype}, w);
}
inline kernels::Gemm weight_gradient(const Dims& d, float* dw, const void* dy, const void* x, bool adds) {
  return {
      .c = dw, .a = dy, .b = x, .M = d.N, .N = d.K, .K = d.M, .a_transposed = true, .accumulate = adds, .in = d.dtype, .out = DType::f32};
}

/// Workspace of all three, with plain and with packed weights.
inline std::size_t workspace_bytes(const Dims& d, kernels::Backend backend, bool bias = false) {
  const char present = 0;
  std::size_t bytes = kernels::gemm_workspace_bytes(forward(d, nullptr, nullptr, {}, bias ? &present : nullptr), backend);
  bytes = std::max(bytes, kernels::gemm_workspace_bytes(input_gradient(d, nullptr, nullptr, {}), backend));
  bytes = std::max(bytes, kernels::gemm_workspace_bytes(weight_gradient(d, nullptr, nullptr, nullptr, true), backend));
  return std::max(bytes, kernels::gemm_workspace_bytes(weight_gradient(d, nullptr, nullptr, nullptr, false), backend));
}
inline double flops(const Dims& d) { return 2.0 * static_cast<double>(d.M) * static_cast<double>(d.N) * static_cast<double>(d.K); }

}  // namespace tessera::products
