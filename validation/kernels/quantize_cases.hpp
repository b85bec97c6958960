// Blocks of codes: values with a scale a block, what is at the edges of a scale, and the definition in fp64.
#pragma once
#include "kernels/quantize/quantize.hpp"
#include "same_bits.hpp"

namespace tessera::kernels::testing {

inline constexpr Wire block_wires[] = {Wire::int8_blocks, Wire::int4_blocks};
/// Less than a block of threads' warps, whole ones, several.
inline const std::int64_t quantized_lengths[] = {wire_block, 3 * wire_block, 8 * wire_block, 257 * wire_block};

/// Normal values, with a size of its own in each block. Block 0 has ties between two codes and its largest value twice, block 1 is zeros
/// of both signs, block 2 lies just below what counts.
template <class T>
std::vector<T> block_values(std::int64_t n, unsigned seed) {
  auto x = random_values<T>(n, seed);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const auto block = static_cast<int>(i / static_cast<std::size_t>(wire_block)), at = static_cast<int>(i) % 256;
    float value = std::ldexp(static_cast<float>(x[i]), block % 12 - 8);
    if (block == 0) value = static_cast<float>(at % 127) + (at % 2 == 0 ? 0.5f : 0.0f);
    if (block == 0 && at < 2) value = at == 0 ? 127.0f : -127.0f;
    if (block == 1) value = at % 2 == 0 ? 0.0f : -0.0f;
    if (block == 2) value = std::ldexp(value, -120);
    x[i] = T(value);
  }
  return x;
}

/// A value that is not finite in a block of others.
inline std::vector<float> block_with(float wild, std::size_t at) {
  auto x = random_values<float>(3 * wire_block, 3);
  x[static_cast<std::size_t>(wire_block) + at] = wild;
  return x;
}

/// Two rounds of gradients with error feedback, on the wire and on what is kept.
struct ErrorCase {
  float beta;
  std::int64_t updates;  ///< -1: no count
  float loss_scale;      ///< 0: none
};
inline constexpr ErrorCase error_cases[] = {{0.8f, -1, 0}, {0.8f, 8, 0}, {0.5f, 9, 1024}, {0, -1, 2}};
inline EncodeWithError error_call(const ErrorCase& c) {
  return {.beta = c.beta,
          .updates = c.updates < 0 ? nullptr : &c.updates,
          .interval = 4,
          .loss_scale = c.loss_scale == 0 ? nullptr : &c.loss_scale};
}

}  // namespace tessera::kernels::testing
