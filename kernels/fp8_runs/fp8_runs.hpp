// Elements of weights on their way to whoever multiplies them in fp8: codes of E4M3 and what they are multiplied by, or elements as they
// are.
#pragma once
#include <span>

#include "base/types.hpp"
#include "kernels/context.hpp"

namespace tessera::kernels {

/// Elements that follow each other, all of one form.
struct Fp8Run {
  std::int64_t element = 0, elements = 0;  ///< of the tensor that they are of
  std::int64_t byte = 0;                   ///< at which they begin on their way: of codes a byte each, and at scale_byte() an fp32
  bool coded = false;
};
/// Runs begin on so many bytes.
inline constexpr std::int64_t fp8_run_alignment = 16;
constexpr std::int64_t scale_byte(const Fp8Run& run) { return run.byte + round_up(run.elements, fp8_run_alignment); }
/// Of elements in bf16.
constexpr std::int64_t run_bytes(std::int64_t elements, bool coded) {
  return round_up(coded ? elements : 2 * elements, fp8_run_alignment) + (coded ? fp8_run_alignment : 0);
}

/// The largest magnitude of x (n) joins `largest`; NaN is above all.
TESSERA_OP(find_magnitude, (const Context& context, float* largest, const bf16* x, std::int64_t n), (context, largest, x, n))
/// Largest magnitudes (n) become multipliers of E4M3, as fp8_quantize has them.
TESSERA_OP(fp8_multipliers, (const Context& context, float* magnitudes, std::int64_t n), (context, magnitudes, n))

/// A run of x, in its place of `bytes`. `bytes` and x lie on sixteen bytes.
struct EncodeFp8Run {
  std::byte* bytes = nullptr;
  const bf16* x = nullptr;
  Fp8Run run = {};
  const float* multiplier = nullptr;  ///< of codes, as that of Fp8Delayed
  float* largest = nullptr;           ///< the same
};
TESSERA_OP(encode_fp8_run, (const Context& context, const EncodeFp8Run& arguments), (context, arguments))

/// x of the runs: code * scale rounded to nearest even, or as it was. What no run covers stays. A product that rounds it to codes by the
/// same multiplier gets the codes that came: between two of them lie more than the roundings of scale and x amount to.
struct DecodeFp8Runs {
  bf16* x = nullptr;
  const std::byte* bytes = nullptr;
  std::span<const Fp8Run> runs = {};
};
TESSERA_OP(decode_fp8_runs, (const Context& context, const DecodeFp8Runs& arguments), (context, arguments))

}  // namespace tessera::kernels
