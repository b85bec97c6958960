#include "model/calls/counted.hpp"

#include <fmt/format.h>

#include "kernels/counted_rows/counted_rows.hpp"

namespace tessera {
namespace {

using enum Access;

/// Rows that products take at a time: an eighth of a chunk leaves out most of what does not count, and few products differ in their rows.
std::int64_t step_of(const ModelShape& s, std::int64_t at_once) {
  const std::int64_t least = std::max<std::int64_t>(128, s.loss_chunk / 8);
  std::int64_t step = at_once;
  while (step % 2 == 0 && step / 2 >= least) step /= 2;
  return step;
}

void move_rows(Recorder& r, const char* name, Value x, std::int64_t N, DType dtype, const CountedTargets& targets,
               void (*move)(const kernels::host::MoveRows&)) {
  const Value rows = targets.rows, count = targets.counted.count;
  if (!rows) return;
  r.call({.name = fmt::format("{} {}", name, r.name_of(x)),
          .touches = {{x, add}, {rows, read}, {count, read}},
          .run = [=, M = r.s.tokens()](const At& at) {
            move({.x = at.get(x), .rows = at.get<std::int32_t>(rows), .n = *at.get<std::int32_t>(count), .M = M, .N = N, .dtype = dtype});
          }});
}

}  // namespace

CountedTargets counted_targets(Recorder& r, std::int64_t at_once) {
  const ModelShape& s = r.s;
  const Value targets = r.targets(), weights = r.row_weights();
  if (s.backend != kernels::Backend::host) return {.targets = targets, .weights = weights};
  const std::int64_t M = s.tokens();
  return {.targets = r.value("counted_targets", {M}, DType::u32),
          .weights = r.value("counted_weights", {M}, DType::f32),
          .rows = r.value("counted_rows", {M}, DType::u32),
          .counted = {.count = r.value("counted", {1}, DType::u32), .step = step_of(s, at_once)}};
}

void count_rows(Recorder& r, const CountedTargets& found) {
  if (!found.rows) return;
  const Value targets = r.targets(), weights = r.row_weights();
  r.call({.name = "count_rows",
          .touches = {{found.counted.count, write},
                      {found.rows, write},
                      {found.targets, write},
                      {found.weights, write},
                      {targets, read},
                      {weights, read}},
          .run = [=, M = r.s.tokens()](const At& at) {
            kernels::host::count_rows({.count = at.get<std::int32_t>(found.counted.count),
                                       .rows = at.get<std::int32_t>(found.rows),
                                       .counted_targets = at.get<std::int32_t>(found.targets),
                                       .counted_weights = at.get<float>(found.weights),
                                       .targets = at.get<std::int32_t>(targets),
                                       .weights = at.get<float>(weights),
                                       .M = M});
          }});
}

void gather_counted(Recorder& r, Value x, std::int64_t N, DType dtype, const CountedTargets& targets) {
  move_rows(r, "gather_counted_rows", x, N, dtype, targets, kernels::host::gather_counted_rows);
}

void spread_counted(Recorder& r, Value x, std::int64_t N, DType dtype, const CountedTargets& targets) {
  move_rows(r, "spread_counted_rows", x, N, dtype, targets, kernels::host::spread_counted_rows);
}

}  // namespace tessera
