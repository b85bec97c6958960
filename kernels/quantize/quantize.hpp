// Blocks of codes that share a scale: what weights and gradients are while they travel (ZeRO++: Wang et al., arXiv:2306.10209).
// A block holds 256 elements, as shards are cut on (shard_block), so that no block has two owners and none depends on how many owners
// there are: an fp32 scale, then a code an element, in two's complement. A code is x / scale rounded to nearest even, and the scale is the
// block's largest magnitude over the largest code, so that both signs are alike and the largest value stays itself. A block whose largest
// magnitude lies below 2^-100 is zeros. One that holds a value that is not finite has a scale of NaN, and is NaN when it is decoded.
#pragma once
#include "kernels/context.hpp"

namespace tessera::kernels {

/// How elements travel: as they lie, or in blocks. In each 32 codes of 4 bits byte i holds element i below element 16 + i.
enum class Wire : std::uint8_t { plain, int8_blocks, int4_blocks };

/// Elements of a block.
inline constexpr std::int64_t wire_block = 256;
/// Codes lie in [-largest_code, largest_code].
constexpr int largest_code(Wire wire) { return wire == Wire::int8_blocks ? 127 : 7; }
constexpr int code_bits(Wire wire) { return wire == Wire::int8_blocks ? 8 : 4; }
/// Bytes of n elements in blocks, whole words of four bytes. n is a multiple of wire_block.
constexpr std::int64_t wire_bytes(Wire wire, std::int64_t n) { return n / wire_block * (4 + wire_block * code_bits(wire) / 8); }

/// blocks (write) of x (n), fp32, bf16 or fp16. `blocks` lies on four bytes, x on sixteen.
struct EncodeBlocks {
  std::byte* blocks = nullptr;
  const void* x = nullptr;
  DType dtype = DType::f32;
  std::int64_t n = 0;
  Wire wire = Wire::int8_blocks;
};
TESSERA_OP(encode_blocks, (const Context& context, const EncodeBlocks& arguments), (context, arguments))

/// Error feedback (LoCo: Xie et al., arXiv:2407.04480). With e = the decoded error and v = x + e: blocks (write) of v; then
/// error (add) = blocks of int8 codes of beta * e + (1 - beta) * (v - what the blocks of v decode to). What of it is not finite is dropped,
/// a block of 256 at a time. x (n), fp32. `blocks` and `error` lie on four bytes, x on sixteen.
struct EncodeWithError {
  std::byte* blocks = nullptr;
  std::byte* error = nullptr;
  const float* x = nullptr;
  std::int64_t n = 0;
  Wire wire = Wire::int4_blocks;
  float beta = 0.8f;
  const std::int64_t* updates = nullptr;  ///< at multiples of `interval` e is zero, whatever the error holds; null: it never is
  std::int64_t interval = 1024;
  const float* loss_scale = nullptr;  ///< that x is scaled by and the error is not; null: 1
};
TESSERA_OP(encode_with_error, (const Context& context, const EncodeWithError& arguments), (context, arguments))

/// x (n, write) = code * scale, rounded to its type.
struct DecodeBlocks {
  void* x = nullptr;
  const std::byte* blocks = nullptr;
  DType dtype = DType::f32;
  std::int64_t n = 0;
  Wire wire = Wire::int8_blocks;
};
TESSERA_OP(decode_blocks, (const Context& context, const DecodeBlocks& arguments), (context, arguments))

/// sum (n) (+)= what `members` arrays of blocks decode to, which follow each other: in their order, each by an fma.
struct SumBlocks {
  float* sum = nullptr;
  const std::byte* blocks = nullptr;
  std::int64_t n = 0;
  int members = 1;
  bool accumulate = false;
  Wire wire = Wire::int4_blocks;
};
TESSERA_OP(sum_blocks, (const Context& context, const SumBlocks& arguments), (context, arguments))

}  // namespace tessera::kernels
