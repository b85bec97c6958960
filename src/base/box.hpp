// Boxes of arrays: what of a tensor a rank keeps, or a file holds, whatever cut it.
#pragma once
#include <functional>
#include <optional>

#include "base/types.hpp"

namespace tessera {

/// `count` elements from `start` along each dim, outermost first. Without dims: a scalar.
struct Box {
  std::vector<std::int64_t> start, count;
  std::int64_t elements() const;
  /// "[0, 64) x [32, 48)"
  std::string str() const;
  friend bool operator==(const Box&, const Box&) = default;
};

Box whole_box(const Shape& shape);
/// Of as many dims as the shape and inside it; any numbers may be asked.
bool lies_in(const Box& box, const Shape& shape);
/// What two boxes of one array have in common; nothing where that is no element.
std::optional<Box> overlap(const Box& a, const Box& b);
/// A box of the array `outer` as the array around `outer` counts it.
Box outside(Box inner, const Box& outer);

/// Where the box's element `at`, counted row-major, is in the row-major array around the box.
std::int64_t element_around(const Box& box, std::int64_t at, const Shape& outer);

/// The boxes of a row-major array that together are its flat range [begin, end), in order: at most one head and one tail a dim.
std::vector<Box> flat_range_boxes(const std::vector<std::int64_t>& dims, std::int64_t begin, std::int64_t end);

/// Elements that lie one after the other both in row-major memory of a box and in that of another, from these offsets on.
struct BoxRun {
  std::int64_t from = 0, to = 0, elements = 0;
};
/// The elements of `part`, a box in both `from` and `to`, in runs of ascending offsets, as long as they can be.
void for_each_run(const Box& part, const Box& from, const Box& to, const std::function<void(const BoxRun&)>& take);

}  // namespace tessera
