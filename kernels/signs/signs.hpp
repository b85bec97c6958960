// Signs of a tensor's numbers, a bit each, and one scale: what momenta of 1-bit Adam are while they travel (Tang et al., arXiv:2102.02888).
// With a scale s = |x|_2 / sqrt(n) a number is taken for -s where it is below 0, and for s elsewhere: zeros of both signs are, and NaN.
// What that takes from it is its error, which whoever packs keeps and adds the next time. A tensor of n elements is cut into equal parts,
// one for each of a group of ranks, of whole words: of the last ones there may be less, or nothing. Bits beyond are 0.
#pragma once
#include "kernels/context.hpp"
#include "kernels/fixed/fixed_sum.hpp"

namespace tessera::kernels {

/// Element 32 i + k is bit k of word i.
inline constexpr std::int64_t sign_word = 32;
/// Elements of each of so many parts of n.
constexpr std::int64_t sign_part(std::int64_t n, std::int64_t parts) {
  return (n + parts * sign_word - 1) / (parts * sign_word) * sign_word;
}

/// Elements whose squares are summed in fp64, in a fixed order.
inline constexpr std::int64_t sign_block = 256;
/// sum += squares of x + error: sums of blocks, which are added exactly, so that threads do not matter.
struct SumSignSquares {
  FixedSum* sum = nullptr;
  const float* x = nullptr;  ///< (n); null: zeros
  const float* error = nullptr;
  std::int64_t n = 0;
};
TESSERA_OP(sum_sign_squares, (const Context& context, const SumSignSquares& arguments), (context, arguments))

/// With v = x + error: words and scale (write) of v, of part i `step` words after those of part i - 1; error = v - what they stand for.
struct PackSigns {
  std::uint32_t* words = nullptr;
  float* scale = nullptr;
  const float* x = nullptr;       ///< (n); null: zeros
  float* error = nullptr;         ///< (n, add)
  const FixedSum* sum = nullptr;  ///< of the squares of v
  std::int64_t n = 0, parts = 1;
  std::int64_t part = 0;  ///< elements, whole words
  std::int64_t step = 0;
};
TESSERA_OP(pack_signs, (const Context& context, const PackSigns& arguments), (context, arguments))

/// error (n) = the mean of what members' words stand for, added up in their order, each over their number, + error.
struct SumSigns {
  float* error = nullptr;
  const std::uint32_t* words = nullptr;  ///< of member i `step` words after those of member i - 1, and so its scale
  const float* scale = nullptr;
  std::int64_t n = 0;
  int members = 1;
  std::int64_t step = 0;
};
TESSERA_OP(sum_signs, (const Context& context, const SumSigns& arguments), (context, arguments))

/// x (n, write) = what words stand for, each part with a scale of its own.
struct UnpackSigns {
  float* x = nullptr;
  const std::uint32_t* words = nullptr;
  const float* scale = nullptr;
  std::int64_t n = 0;
  std::int64_t part = 0;  ///< elements, whole words
  std::int64_t step = 0;
};
TESSERA_OP(unpack_signs, (const Context& context, const UnpackSigns& arguments), (context, arguments))

}  // namespace tessera::kernels
