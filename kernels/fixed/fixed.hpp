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

/// sum[i] += round_to_nearest_even(x[i] * 2^44). Sets *overflow to 1 (never clears it) for a value that is not finite or at least 2^18 in
/// magnitude, or when |sum[i]| reaches `limit`. A sum that will be added to those of k - 1 others is safe with limit = fixed_limit / k.
TESSERA_OP(fixed_accumulate,
           (const Context& context, std::int64_t* sum, const float* x, std::int64_t n, std::int32_t* overflow, std::int64_t limit),
           (context, sum, x, n, overflow, limit))
/// sum[i] += x[i] with the same rule at fixed_limit.
TESSERA_OP(fixed_add, (const Context& context, std::int64_t* sum, const std::int64_t* x, std::int64_t n, std::int32_t* overflow),
           (context, sum, x, n, overflow))
/// out[i] = sum[i] * 2^-44
TESSERA_OP(fixed_to_float, (const Context& context, float* out, const std::int64_t* sum, std::int64_t n), (context, out, sum, n))
/// out[i] = sum[i] * 2^-44, rounded to fp32 and then to bf16.
TESSERA_OP(fixed_to_bf16, (const Context& context, bf16* out, const std::int64_t* sum, std::int64_t n), (context, out, sum, n))

}  // namespace tessera::kernels
