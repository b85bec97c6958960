// Sums that do not depend on order: 64-bit fixed point for gradients, 128-bit for norms and losses. Integer addition is associative,
// so any split over ranks, micro-batches and threads gives the same bits.
#pragma once
#include "kernels/context.hpp"
#include "kernels/fixed/fixed_sum.hpp"

namespace tessera::kernels {

/// Gradients: value * 2^44 as int64. Resolution 2^-44 (5.7e-14), range of the whole sum +-2^19.
inline constexpr int fixed_bits = 44;

/// What no sum may reach: half of what an int64 holds.
inline constexpr std::int64_t fixed_limit = std::int64_t{1} << 62;

/// Bits of what did not fit into a fixed-point sum.
enum FixedFault : std::int32_t { fixed_out_of_range = 1, fixed_not_finite = 2 };

/// sum[i] += round_to_nearest_even(x[i] / scale * 2^44), where *scale is a power of two (null: 1). Sets bits of *faults (never clears
/// them): for a value that is not finite, for one that is at least 2^18 in magnitude, and where |sum[i]| reaches `limit`. Such values add
/// nothing. A sum that will be added to those of k - 1 others is safe with limit = fixed_limit / k.
struct FixedAccumulate {
  std::int64_t* sum = nullptr;
  const float* x = nullptr;
  std::int64_t n = 0;
  std::int32_t* faults = nullptr;
  std::int64_t limit = fixed_limit;
  const float* scale = nullptr;
};
TESSERA_OP(fixed_accumulate, (const Context& context, const FixedAccumulate& arguments), (context, arguments))
/// sum[i] += x[i], out of range at fixed_limit.
TESSERA_OP(fixed_add, (const Context& context, std::int64_t* sum, const std::int64_t* x, std::int64_t n, std::int32_t* faults),
           (context, sum, x, n, faults))
/// out[i] = sum[i] * 2^-44
TESSERA_OP(fixed_to_float, (const Context& context, float* out, const std::int64_t* sum, std::int64_t n), (context, out, sum, n))
/// out[i] = sum[i] * 2^-44, rounded to fp32 and then to bf16.
TESSERA_OP(fixed_to_bf16, (const Context& context, bf16* out, const std::int64_t* sum, std::int64_t n), (context, out, sum, n))

}  // namespace tessera::kernels
