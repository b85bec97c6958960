// What calls of kernels have in common.
#pragma once
#include "kernels/elementwise/elementwise.hpp"
#include "model/record/recorder.hpp"

namespace tessera {

/// What a call touches, and of its optional operands those that are there.
inline std::vector<Touch> with_reads(std::vector<Touch> touches, std::initializer_list<Value> optional) {
  for (const Value value : optional)
    if (value) touches.push_back({value, Access::read});
  return touches;
}

/// A gradient that kernels add to, of `elements` fp32 values: zero where it starts a sum.
inline float* started(const At& at, Value gradient, std::int64_t elements) {
  auto* sum = at.get<float>(gradient);
  if (!at.adds(gradient)) fill_zero(at.context, sum, static_cast<std::size_t>(elements) * sizeof(float));
  return sum;
}

}  // namespace tessera
