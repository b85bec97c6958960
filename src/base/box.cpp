#include "base/box.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

namespace tessera {
namespace {

/// Appends the boxes of [begin, end) of the array dims[d..], with `prefix` fixing the dims before.
void add_boxes(const std::vector<std::int64_t>& dims, std::size_t d, std::vector<std::int64_t>& prefix, std::int64_t begin,
               std::int64_t end, std::vector<Box>& out) {
  if (begin >= end) return;
  auto emit = [&](std::int64_t first, std::int64_t count) {
    if (count <= 0) return;
    Box box{prefix, std::vector<std::int64_t>(prefix.size(), 1)};
    box.start.push_back(first), box.count.push_back(count);
    for (auto k = d + 1; k < dims.size(); ++k) box.start.push_back(0), box.count.push_back(dims[k]);
    out.push_back(std::move(box));
  };
  if (d + 1 == dims.size()) return emit(begin, end - begin);
  std::int64_t row = 1;
  for (auto k = d + 1; k < dims.size(); ++k) row *= dims[k];
  auto inside = [&](std::int64_t r, std::int64_t from, std::int64_t to) {
    prefix.push_back(r);
    add_boxes(dims, d + 1, prefix, from, to, out);
    prefix.pop_back();
  };
  std::int64_t first = begin / row, last = end / row;  // whole rows are [ceil(begin), last)
  if (first == last) return inside(first, begin % row, end % row);
  if (begin % row != 0) inside(first++, begin % row, row);
  emit(first, last - first);
  inside(last, 0, end % row);
}

/// Offset of an element in row-major memory of a box around it.
std::int64_t offset_in(const Box& box, const std::vector<std::int64_t>& element) {
  std::int64_t offset = 0;
  for (std::size_t d = 0; d < element.size(); ++d) offset = offset * box.count[d] + (element[d] - box.start[d]);
  return offset;
}

}  // namespace

std::int64_t Box::elements() const {
  std::int64_t n = 1;
  for (const std::int64_t c : count) n *= c;
  return n;
}

std::string Box::str() const {
  if (start.empty()) return "scalar";
  std::vector<std::string> dims;
  for (std::size_t d = 0; d < start.size(); ++d) dims.push_back(fmt::format("[{}, {})", start[d], start[d] + count[d]));
  return fmt::format("{}", fmt::join(dims, " x "));
}

std::int64_t element_around(const Box& box, std::int64_t at, const Shape& outer) {
  std::vector<std::int64_t> element = box.start;
  for (std::size_t d = element.size(); d-- > 0; at /= box.count[d]) element[d] += at % box.count[d];
  return offset_in(whole_box(outer), element);
}

Box whole_box(const Shape& shape) { return {std::vector<std::int64_t>(shape.dims.size(), 0), shape.dims}; }

bool lies_in(const Box& box, const Shape& shape) {
  if (box.start.size() != shape.dims.size() || box.count.size() != shape.dims.size()) return false;
  for (std::size_t d = 0; d < shape.dims.size(); ++d)
    if (box.start[d] < 0 || box.count[d] < 0 || box.start[d] > shape.dims[d] || box.count[d] > shape.dims[d] - box.start[d]) return false;
  return true;
}

std::optional<Box> overlap(const Box& a, const Box& b) {
  Box common;
  for (std::size_t d = 0; d < a.start.size(); ++d) {
    const std::int64_t begin = std::max(a.start[d], b.start[d]), end = std::min(a.start[d] + a.count[d], b.start[d] + b.count[d]);
    if (begin >= end) return std::nullopt;
    common.start.push_back(begin), common.count.push_back(end - begin);
  }
  return common;
}

Box outside(Box inner, const Box& outer) {
  for (std::size_t d = 0; d < inner.start.size(); ++d) inner.start[d] += outer.start[d];
  return inner;
}

std::vector<Box> flat_range_boxes(const std::vector<std::int64_t>& dims, std::int64_t begin, std::int64_t end) {
  if (dims.empty()) return begin < end ? std::vector<Box>{Box{}} : std::vector<Box>{};
  std::vector<Box> out;
  std::vector<std::int64_t> prefix;
  add_boxes(dims, 0, prefix, begin, end, out);
  return out;
}

void for_each_run(const Box& part, const Box& from, const Box& to, const std::function<void(const BoxRun&)>& take) {
  if (part.elements() == 0) return;
  // Dims from `inner` on lie in one piece in both: all of them but the first are whole.
  std::size_t inner = part.count.size();
  std::int64_t length = 1;
  while (inner > 0) {
    --inner;
    length *= part.count[inner];
    if (part.count[inner] != from.count[inner] || part.count[inner] != to.count[inner]) break;
  }
  std::vector<std::int64_t> element = part.start;
  for (;;) {
    take({offset_in(from, element), offset_in(to, element), length});
    std::size_t d = inner;
    while (d > 0 && ++element[d - 1] == part.start[d - 1] + part.count[d - 1]) --d, element[d] = part.start[d];
    if (d == 0) return;
  }
}

}  // namespace tessera
