#include "kernels/update/state_type.hpp"

#include <algorithm>
#include <cstring>

#include "base/check.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "kernels/update/eight_bits.hpp"

namespace tessera::kernels {
namespace {

DType dtype_of(StateType type) { return type == StateType::f32 ? DType::f32 : type == StateType::bf16 ? DType::bf16 : DType::f16; }

}  // namespace

StateType state_type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return StateType::f32;
    case DType::bf16:
      return StateType::bf16;
    case DType::f16:
      return StateType::f16;
    case DType::i64:
    case DType::u16:
    case DType::u32:
    case DType::e4m3:
    case DType::e5m2:
      break;
  }
  fail(ExitCode::internal, "state in {}", name_of(dtype));
}

void encode_state(StateType type, void* to, const float* from, std::int64_t n) {
  if (!is_blocks(type)) return host::cast({}, to, dtype_of(type), from, DType::f32, n);
  const bool has_signs = type == StateType::signed_blocks;
  const EightBitSearch& search = has_signs ? signed_search : unsigned_search;
  const int zero = (has_signs ? signed_eight_bits : unsigned_eight_bits).zero;
  auto* block = static_cast<std::uint8_t*>(to);
  for (std::int64_t at = 0; at < n; at += state_block, block += state_block_bytes) {
    const std::int64_t count = std::min(state_block, n - at);
    const auto [least, most] = std::minmax_element(from + at, from + at + count);
    const float scale = block_scale(*least, *most);
    for (std::int64_t i = 0; i < state_block; ++i)
      block[i] = static_cast<std::uint8_t>(i < count ? encode_eight_bits(search.row.data(), zero, from[at + i], scale)
                                                     : static_cast<std::uint32_t>(zero));
    std::memcpy(block + state_block, &scale, sizeof scale);
  }
}

void decode_state(StateType type, float* to, const void* from, std::int64_t n) {
  if (!is_blocks(type)) return host::cast({}, to, DType::f32, from, dtype_of(type), n);
  const EightBitMap& map = type == StateType::signed_blocks ? signed_eight_bits : unsigned_eight_bits;
  const auto* block = static_cast<const std::uint8_t*>(from);
  for (std::int64_t at = 0; at < n; at += state_block, block += state_block_bytes) {
    float scale = 0;
    std::memcpy(&scale, block + state_block, sizeof scale);
    for (std::int64_t i = 0; i < std::min(state_block, n - at); ++i) to[at + i] = decode_eight_bits(map.value.data(), block[i], scale);
  }
}

}  // namespace tessera::kernels
