// The copy of a weight in fp8, for hosts and for GPUs.
#pragma once
#include "kernels/gemm/gemm.hpp"

namespace tessera::kernels {

inline std::size_t packed_codes_bytes(const Gemm& g) {
  const std::int64_t scales = fp8_scales(g.fp8->b.scaling, g.N, g.K) * static_cast<std::int64_t>(sizeof(float));
  return static_cast<std::size_t>(packed_scales_at(g) + scales);
}

/// What makes it of g.b.
inline Fp8Quantize quantize_b(void* packed, const Gemm& g) {
  auto* bytes = static_cast<std::uint8_t*>(packed);
  return {.codes = bytes,
          .scales = reinterpret_cast<float*>(bytes + packed_scales_at(g)),
          .x = g.b,
          .rows = g.b_transposed ? g.N : g.K,
          .columns = g.b_transposed ? g.K : g.N,
          .transposed = !g.b_transposed,
          .dtype = g.in,
          .type = g.fp8->b.type,
          .scaling = g.fp8->b.scaling,
          .delayed = g.fp8->b.delayed};
}

}  // namespace tessera::kernels
