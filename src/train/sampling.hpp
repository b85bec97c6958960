// Which token follows, for `tessera generate`.
#pragma once
#include <cstdint>
#include <span>

namespace tessera {

/// Draws a token: temperature 0 takes the largest logit; top_k 0 considers all. Depends on (seed, position) alone.
std::int32_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k, std::uint64_t seed, std::int64_t position);

}  // namespace tessera
