// Values in the type of an export.
#pragma once
#include <span>
#include <vector>

#include "base/types.hpp"
#include "kernels/elementwise/elementwise.hpp"

namespace tessera {

/// The bytes of values in a type: of fp32 themselves; else rounded, and they lie in `room`.
inline std::span<const std::byte> elements_of(std::span<const float> values, DType type, std::vector<std::byte>& room) {
  if (type == DType::f32) return std::as_bytes(values);
  room.resize(values.size() * size_of(type));
  kernels::cast({}, room.data(), type, values.data(), DType::f32, std::ssize(values));
  return room;
}

}  // namespace tessera
