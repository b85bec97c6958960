// What hosts and GPUs have in common.
#pragma once
#include "kernels/fp8/fp8.hpp"
#include "kernels/fp8_runs/fp8_runs.hpp"

namespace tessera::kernels::fp8_runs {

/// Calls quantize with the run's codes, as rows that fill a block of threads and what is left.
template <class Quantize>
void for_each_shape(const EncodeFp8Run& p, Quantize&& quantize) {
  const std::int64_t whole = p.run.elements / fp8_block * fp8_block, rest = p.run.elements - whole;
  Fp8Quantize q{.codes = reinterpret_cast<std::uint8_t*>(p.bytes) + p.run.byte,
                .scales = reinterpret_cast<float*>(p.bytes + scale_byte(p.run)),
                .x = p.x + p.run.element,
                .rows = whole / fp8_block,
                .columns = fp8_block,
                .dtype = DType::bf16,
                .delayed = {p.multiplier, p.largest}};
  if (whole > 0) quantize(q);
  q.codes += whole, q.x = p.x + p.run.element + whole, q.rows = 1, q.columns = rest;
  if (rest > 0) quantize(q);
}

}  // namespace tessera::kernels::fp8_runs
