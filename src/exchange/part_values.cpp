#include "exchange/part_values.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "base/check.hpp"

namespace tessera {
namespace {

constexpr std::int64_t most_of_theirs = 1 << 20;  // of a tensor of theirs that are read at once
constexpr std::int64_t block = 32;                // elements with one scale

/// Of theirs the box of some rows and columns of ours.
Box box_of(const TensorPart& part, std::int64_t row, std::int64_t rows, std::int64_t column, std::int64_t columns) {
  return part.shape.dims.size() == 1 ? part.of_theirs({{row}, {rows}}) : part.of_theirs({{row, column}, {rows, columns}});
}

/// E2M1: a sign, two bits of exponent, one of mantissa.
float value_of(unsigned code) {
  constexpr std::array<float, 8> sizes = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  return (code & 8u) ? -sizes[code & 7u] : sizes[code & 7u];
}

/// E8M0: a power of two; the last code is no number.
float scaled(float value, float code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(value, static_cast<int>(code) - 127);
}

/// Rows and columns of ours, row-major into `out`, of blocks and scales: (..., out, in / 32) where theirs is (..., in, out).
void read_mxfp4(const io::SafetensorsModel& model, const FileTensor& tensor, const TensorPart& part, std::int64_t row, std::int64_t rows,
                std::int64_t column, std::int64_t columns, std::span<float> out) {
  const Box there = box_of(part, row, rows, column, columns);
  const std::int64_t first = column / block, n = (column + columns + block - 1) / block - first;
  Box scale = there;
  const std::size_t last = there.start.size() - 1;
  scale.start[last - 1] = there.start[last], scale.count[last - 1] = there.count[last];
  scale.start[last] = first, scale.count[last] = n;
  Box pairs = scale;
  pairs.start.push_back(0), pairs.count.push_back(block / 2);
  std::vector<float> scales(static_cast<std::size_t>(scale.elements())), bytes(static_cast<std::size_t>(pairs.elements()));
  model.read_box(*tensor.scales, scale, scales);
  model.read_box(*tensor.values, pairs, bytes);
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c) {
      const std::int64_t at = r * part.step * n * block + column - first * block + c;
      const auto pair = static_cast<unsigned>(bytes[static_cast<std::size_t>(at / 2)]);  // the low half comes first
      out[static_cast<std::size_t>(r * columns + c)] =
          scaled(value_of(at % 2 == 0 ? pair & 15u : pair >> 4), scales[static_cast<std::size_t>(at / block)]);
    }
}

/// Rows and columns of ours that lie apart in theirs, row-major into `out`.
void read_apart(const io::SafetensorsModel& model, const FileTensor& tensor, const TensorPart& part, std::int64_t row, std::int64_t rows,
                std::int64_t column, std::int64_t columns, std::span<float> out) {
  const Box whole = box_of(part, row, rows, column, columns);
  std::vector<float> around(static_cast<std::size_t>(whole.elements()));
  model.read_box(*tensor.values, whole, around);
  const std::int64_t by_row = part.turned ? part.step : part.step * columns, by_column = part.turned ? (rows - 1) * part.step + 1 : 1;
  for (std::int64_t r = 0; r < rows; ++r)
    for (std::int64_t c = 0; c < columns; ++c)
      out[static_cast<std::size_t>(r * columns + c)] = around[static_cast<std::size_t>(r * by_row + c * by_column)];
}

/// Runs of rows of ours that lie two apart in theirs.
void read_pairs(const io::SafetensorsModel& model, const FileTensor& tensor, const TensorPart& part, const Box& box, std::int64_t at,
                std::span<float> out) {
  for (const Box& inner : flat_range_boxes(box.count, at, at + std::ssize(out))) {
    const Box ours = outside(inner, box);
    const std::int64_t columns = ours.elements() / ours.count[0];
    for (std::int64_t row = ours.start[0], left = ours.count[0]; left > 0;) {
      const auto [n, deinterleaved] = part.deinterleaved(row, left);
      Box run = ours;
      run.start[0] = row, run.count[0] = n;
      read_part(model, tensor, deinterleaved, run, 0, out.first(static_cast<std::size_t>(n * columns)));
      out = out.subspan(static_cast<std::size_t>(n * columns));
      row += n, left -= n;
    }
  }
}

}  // namespace

FileTensor find_values(const io::SafetensorsModel& model, const ExportTensor& tensor) {
  const std::string& name = tensor.name;
  if (const auto* there = model.find(name)) return {there};
  if (!std::ranges::all_of(tensor.parts, &TensorPart::turned)) return {};
  const auto *blocks = model.find(name + "_blocks"), *scales = model.find(name + "_scales");
  return blocks && scales ? FileTensor{blocks, scales} : FileTensor{};
}

void name_as_files_do(const io::SafetensorsModel& model, const TensorNames& names, std::vector<ExportTensor>& tensors) {
  const std::string_view prefix = names.prefix();
  const auto begins = [&](const auto& tensor) { return tensor.name.starts_with(prefix); };
  if (prefix.empty() || std::ranges::any_of(model.tensors(), begins)) return;
  for (ExportTensor& tensor : tensors)
    if (begins(tensor)) tensor.name.erase(0, prefix.size());
}

bool has_shape(const FileTensor& tensor, const Shape& shape) {
  if (!tensor.is_mxfp4()) return tensor.values->shape == shape;
  Shape scales = shape;
  const std::size_t dims = shape.dims.size();
  if (dims < 2 || shape.dims[dims - 2] % block != 0) return false;
  scales.dims[dims - 2] = shape.dims[dims - 1], scales.dims[dims - 1] = shape.dims[dims - 2] / block;
  Shape blocks = scales;
  blocks.dims.push_back(block / 2);
  return tensor.scales->shape == scales && tensor.values->shape == blocks;
}

void read_part(const io::SafetensorsModel& model, const FileTensor& tensor, const TensorPart& part, const Box& box, std::int64_t at,
               std::span<float> out) {
  if (part.pairs_of > 0) return read_pairs(model, tensor, part, box, at, out);
  if (part.in_order() && !tensor.is_mxfp4()) return model.read_box(*tensor.values, part.of_theirs(box), out, at);
  TESSERA_REQUIRE(part.turned || !tensor.is_mxfp4(), "{} is MXFP4 and not turned", part.ours);
  const bool vector = part.shape.dims.size() == 1;
  for (const Box& inner : flat_range_boxes(box.count, at, at + std::ssize(out))) {
    const Box ours = outside(inner, box);
    const std::int64_t rows = ours.count[0], column = vector ? 0 : ours.start[1], columns = vector ? 1 : ours.count[1];
    const std::int64_t at_once = std::max<std::int64_t>(1, most_of_theirs / (columns * part.step));
    for (std::int64_t done = 0; done < rows; done += at_once) {
      const std::int64_t n = std::min(at_once, rows - done);
      const std::span<float> piece = out.first(static_cast<std::size_t>(n * columns));
      (tensor.is_mxfp4() ? read_mxfp4 : read_apart)(model, tensor, part, ours.start[0] + done, n, column, columns, piece);
      out = out.subspan(piece.size());
    }
  }
}

void put_part(const TensorPart& part, std::int64_t columns, std::int64_t at, std::span<const float> values, std::span<float> slab) {
  const bool vector = part.shape.dims.size() == 1;
  const std::int64_t width = vector ? 1 : part.shape.dims[1], last = part.box.start.back();
  for (std::int64_t i = 0; i < std::ssize(values); ++i) {
    const std::int64_t row = (at + i) / width, column = (at + i) % width;
    std::int64_t to = last + part.step * row;  // of a vector
    if (!vector && part.turned) to += column * columns;
    if (!vector && !part.turned) to = (part.box.start[part.box.start.size() - 2] + part.step * row) * columns + last + column;
    slab[static_cast<std::size_t>(to)] = values[static_cast<std::size_t>(i)];
  }
}

}  // namespace tessera
