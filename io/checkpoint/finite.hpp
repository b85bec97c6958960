// Values that are no numbers: a checkpoint that others trust has none.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "io/checkpoint/saved_state.hpp"

namespace tessera::io {

/// The first value that is NaN or infinite; -1 where all are finite.
std::int64_t first_not_finite(std::span<const float> values);

/// "nan", "inf" or "-inf".
std::string text_not_finite(float value);

/// "adam_v of layers.3.mlp.w_down, element 17 in the order of memory, is nan": of a value at an element of a unit.
std::string describe_not_finite(const CheckpointLayout& layout, const std::string& group, int unit, std::int64_t element, float value);

/// The same of the first one in slices of a rank, where they lie: "" where all are finite.
std::string find_not_finite(const CheckpointLayout& layout, int rank, int ranks, std::span<const ShardSlice> slices);

}  // namespace tessera::io
