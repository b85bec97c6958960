#include "io/checkpoint/finite.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

#include "io/checkpoint/state_sum.hpp"

namespace tessera::io {
namespace {

constexpr std::uint32_t exponent = 0x7f800000;  // of fp32: all of its bits are set where a value is no number

bool is_finite(float value) { return (std::bit_cast<std::uint32_t>(value) & exponent) != exponent; }

}  // namespace

std::string text_not_finite(float value) {
  // The sign of one that is no number depends on the instructions that made it.
  return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
}

std::int64_t first_not_finite(std::span<const float> values) {
  // Nearly always there is none: the first pass does not branch, so that it runs as fast as memory gives.
  std::uint32_t any = 0;
  for (const float value : values) any |= static_cast<std::uint32_t>(!is_finite(value));
  if (any == 0) return -1;
  std::size_t i = 0;
  while (is_finite(values[i])) ++i;
  return static_cast<std::int64_t>(i);
}

std::string describe_not_finite(const CheckpointLayout& layout, const std::string& group, int unit, std::int64_t element, float value) {
  for (const CheckpointTensor& t : layout.tensors)
    for (const CheckpointPiece& piece : t.pieces)
      if (piece.unit == unit && piece.offset <= element && element < piece.offset + piece.box.elements())
        return fmt::format("{} of {}, element {} of {}, is {}", group, t.name, element - piece.offset,
                           t.whole() ? "the tensor" : "a rank's part of it", text_not_finite(value));
  return fmt::format("{} of {}, element {} of the unit, is {}", group, layout.units[static_cast<std::size_t>(unit)].name, element,
                     text_not_finite(value));
}

std::string find_not_finite(const CheckpointLayout& layout, int rank, int ranks, std::span<const ShardSlice> slices) {
  PageBuffer own;
  for (const auto& [slice, begin] : place_slices(layout, rank, ranks, slices)) {
    constexpr std::int64_t most = std::int64_t{1} << 20;
    for (std::int64_t at = 0; at < slice->data.elements(); at += most) {
      const std::span<const float> values = slice->data.values(at, std::min(most, slice->data.elements() - at), own);
      if (const std::int64_t bad = first_not_finite(values); bad >= 0)
        return describe_not_finite(layout, layout.groups[static_cast<std::size_t>(slice->group)], slice->unit, begin + at + bad,
                                   values[static_cast<std::size_t>(bad)]);
    }
  }
  return "";
}

}  // namespace tessera::io
