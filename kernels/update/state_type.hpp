// How what an optimizer keeps of its parameters lies in memory.
#pragma once
#include <cstdint>

#include "base/types.hpp"

namespace tessera::kernels {

/// The first three hold a number an element. Blocks hold 256 elements in a byte each and a scale: state of one sign, or of both.
enum class StateType : std::uint8_t { f32, bf16, f16, signed_blocks, unsigned_blocks };

/// Elements that have a scale in common. Shards and tensors begin on a whole block (shard_block).
inline constexpr std::int64_t state_block = 256;
/// Of a block: codes, then the scale, fp32.
inline constexpr std::int64_t state_block_bytes = state_block + 4;

constexpr bool is_blocks(StateType type) { return type == StateType::signed_blocks || type == StateType::unsigned_blocks; }
constexpr std::int64_t state_bytes(StateType type, std::int64_t elements) {
  if (is_blocks(type)) return (elements + state_block - 1) / state_block * state_block_bytes;
  return elements * (type == StateType::f32 ? 4 : 2);
}
/// Throws Error(internal) for a type that no state has.
StateType state_type_of(DType dtype);

/// Numbers into state in host memory and back. Of blocks the first element begins one; in the last one's rest are zeros. What was decoded
/// is encoded to the same bits again.
void encode_state(StateType type, void* to, const float* from, std::int64_t n);
void decode_state(StateType type, float* to, const void* from, std::int64_t n);

}  // namespace tessera::kernels
