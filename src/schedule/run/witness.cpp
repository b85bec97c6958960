#include "schedule/run/witness.hpp"

#include <fmt/format.h>

#include <cmath>
#include <vector>

#include "kernels/elementwise/elementwise.hpp"

namespace tessera {
namespace {

/// Of a value that passes hand on, its type; none of others.
std::optional<DType> type_of(ValueKind kind, DType compute) {
  switch (kind) {
    case ValueKind::stream_in:
    case ValueKind::stream_out:
    case ValueKind::d_stream:
      return compute;
    case ValueKind::weight_gradient:
      return DType::f32;
    default:
      return {};
  }
}

std::string words_of(const ValueInfo& value) {
  switch (value.kind) {
    case ValueKind::d_stream:
      return "the gradient of the stream";
    case ValueKind::weight_gradient:
      return "the gradient of " + value.name;
    default:
      return "the stream";
  }
}

}  // namespace

void Witness::begin() {
  const std::lock_guard lock(mutex_);
  found_.reset();
  looks_ = true;
}

std::optional<Finding> Witness::end() {
  looks_ = false;
  const std::lock_guard lock(mutex_);
  return std::exchange(found_, {});
}

void Witness::look(const TaskRun& run) {
  const auto* op = std::get_if<RunPass>(&run.task.op);
  if (!op) return;
  const SegmentPass& pass = schedule_.passes[static_cast<std::size_t>(op->pass)];
  const Segment& segment = schedule_.segment_of(pass);
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < pass.operands.size() && !found_; ++i) {
    const ValueInfo& value = segment.at(pass.operands[i].value);
    const std::optional<DType> type = type_of(value.kind, schedule_.shape.dtype);
    if (!type || pass.operands[i].access == Access::read || !run.at[i]) continue;
    const std::int64_t bytes = run.task.uses[i].bytes, n = bytes / static_cast<std::int64_t>(size_of(*type));
    std::vector<std::byte> written(static_cast<std::size_t>(bytes));
    read_(written.data(), run.at[i], bytes);
    std::vector<float> numbers(static_cast<std::size_t>(n));
    kernels::host::cast({}, numbers.data(), DType::f32, written.data(), *type, n);
    for (std::int64_t k = 0; k < n && !found_; ++k)
      if (const float x = numbers[static_cast<std::size_t>(k)]; !std::isfinite(x))
        found_ = {.task = run.task.name, .value = words_of(value), .element = k, .text = fmt::format("{}", x)};
  }
}

}  // namespace tessera
