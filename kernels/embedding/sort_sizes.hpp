// How the GPU's sort of tokens cuts them.
#pragma once
#include "base/types.hpp"

namespace tessera::kernels::cuda::sort_sizes {

inline constexpr int digit_bits = 8, digits = 1 << digit_bits, rounds = 8, sort_threads = digits;  // a thread a digit
inline constexpr std::int64_t tile_tokens = rounds * sort_threads;
constexpr std::int64_t tiles_of(std::int64_t M) { return ceil_div(M, tile_tokens); }

/// Two pairs of tokens and positions, and the counts of digits (digits, tiles).
constexpr std::size_t bytes(std::int64_t M) { return static_cast<std::size_t>(4 * M + digits * tiles_of(M)) * sizeof(std::int32_t); }

}  // namespace tessera::kernels::cuda::sort_sizes
