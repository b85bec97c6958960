// Which token follows, for `tessera generate`.
#pragma once
#include <cstdint>
#include <span>

namespace tessera {

/// Draws a token: temperature 0 takes the largest logit; top_k 0 considers all, and of equal logits a lower id comes first. Depends on
/// (seed, position) alone. Logits that are no numbers fail, as fail_of_logits(position).
std::int32_t sample_token(std::span<const float> logits, double temperature, std::int64_t top_k, std::uint64_t seed, std::int64_t position);

/// Fails with ExitCode::numerics: no token can follow at `position`.
[[noreturn]] void fail_of_logits(std::int64_t position);

}  // namespace tessera
