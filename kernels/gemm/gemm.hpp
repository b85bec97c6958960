// Matrix product: oneDNN on the host, cuBLASLt on a GPU. Row-major everywhere.
#pragma once
#include <optional>

#include "kernels/fp8/fp8.hpp"

namespace tessera::kernels {

/// c(M,N) = scale a(M,K) b(K,N) + addend_scale addend(M,N), or c += with `accumulate`. On a GPU, or where the
/// addend is scaled, the sum is rounded once. Linear layers: forward y(M,N) = x(M,K) w(N,K)^T uses b_transposed; input gradient dx(M,K) =
/// dy(M,N) w(N,K) uses neither; weight gradient dw(N,K) += dy(M,N)^T x(M,K) uses a_transposed, accumulate and an fp32 c.
struct Gemm {
  void* c = nullptr;
  const void* a = nullptr;
  const void* b = nullptr;
  std::int64_t M = 0, N = 0, K = 0;
  bool a_transposed = false;     ///< a is stored (K,M)
  bool b_transposed = false;     ///< b is stored (N,K)
  bool accumulate = false;       ///< c += instead of c =
  DType in = DType::f32;         ///< of a and b. Sums are fp32.
  DType out = DType::f32;        ///< of c: f32, or the same as in
  const void* bias = nullptr;    ///< (N), of type `in`; added to each row
  const void* addend = nullptr;  ///< of c's type and shape, not c itself: a residual stream
  bool b_packed = false;         ///< b was written by gemm_pack_b for this very shape
  float scale = 1;               ///< of the product; not with a bias
  float addend_scale = 1;        ///< of the addend
  std::int64_t a_stride = 0;     ///< elements from a stored row of a to the next; 0: rows follow each other
  std::int64_t c_stride = 0;     ///< the same of c and addend: c may be columns of a wider matrix
  /// a (M,K) and b (N,K), b_transposed, are codes. Sums of their products are fp32, and are multiplied by both scales, of which the product
  /// is rounded first; in blocks codes are, which is exact. `in` is then the type of bias. Not with a scale of its own, nor a_stride.
  struct Fp8 {
    Fp8Operand a, b;
  };
  std::optional<Fp8> fp8 = {};

  std::int64_t a_step() const { return a_stride ? a_stride : a_transposed ? M : K; }
  std::int64_t c_step() const { return c_stride ? c_stride : N; }
  bool is_legal() const {
    const bool is_plain = scale == 1 && !a_transposed && b_transposed && a_stride == 0 && !b_packed;
    return (!fp8 || is_plain) && (!addend || (!accumulate && addend != c)) && (!bias || scale == 1) && a_step() >= (a_transposed ? M : K) &&
           c_step() >= N;
  }
};

TESSERA_OP(gemm, (const Context& context, const Gemm& arguments), (context, arguments))
/// Workspace that gemm needs for this shape (pointers are not looked at).
TESSERA_WORKSPACE(gemm_workspace_bytes, Gemm)
/// Bytes of b in the layout that oneDNN likes best for this shape; 0 where packing brings nothing. With fp8 of its codes and scales.
TESSERA_WORKSPACE(gemm_packed_bytes, Gemm)
/// Writes b (plain, from g.b) into `packed` (gemm_packed_bytes). Weights are packed once and used by every micro-batch. With fp8 b is
/// (N,K), or (K,N) without b_transposed, of type `in`, and becomes the codes (N,K) and scales that packed_codes() finds there.
TESSERA_OP(gemm_pack_b, (const Context& context, void* packed, const Gemm& g), (context, packed, g))

/// The dims of a product of codes on a GPU are multiples of this.
inline constexpr std::int64_t fp8_dim = 16;

/// Where codes that gemm_pack_b has made begin, and their scales.
struct PackedCodes {
  const std::uint8_t* codes = nullptr;
  const float* scales = nullptr;
};
inline std::int64_t packed_scales_at(const Gemm& g) { return round_up(g.N * g.K, 64); }
inline PackedCodes packed_codes(const void* packed, const Gemm& g) {
  const auto* bytes = static_cast<const std::uint8_t*>(packed);
  return {bytes, reinterpret_cast<const float*>(bytes + packed_scales_at(g))};
}

}  // namespace tessera::kernels
