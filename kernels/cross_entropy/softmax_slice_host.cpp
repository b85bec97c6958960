// Bound by memory, as the loss of whole rows is: a row's slice is read once for its sums, and once more for its gradient.
#include <cmath>
#include <cstring>

#include "base/check.hpp"
#include "kernels/cross_entropy/mapped_row_host.hpp"
#include "kernels/cross_entropy/row_host.hpp"
#include "kernels/cross_entropy/softmax_slice_code.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

/// Terms that are summed in fp32; their sums are added in fp64, so that the error does not grow with V.
constexpr std::int64_t block = 1024;

void sums_of_row(const SoftmaxSliceSums& s, std::int64_t r) {
  const float* row = s.logits + r * s.V;
  const std::int64_t target = s.targets[r] - s.first;
  const float most = maximum_of(row, s.V, -std::numeric_limits<float>::max());
  double total = 0;
  for (std::int64_t i = 0; i < s.V; i += block)
    total += static_cast<double>(exponentials_of<false>(row + i, std::min(block, s.V - i), most));
  double* sums = s.sums + 3 * r;
  sums[0] = static_cast<double>(most), sums[1] = total;
  sums[2] = target >= 0 && target < s.V ? static_cast<double>(row[target]) : 0;
}

void sums_of_mapped_row(const SoftmaxSliceSums& s, std::int64_t r) {
  const logit_map::Constants map(s.map);
  const float* row = s.logits + r * s.V;
  const std::int64_t target = s.targets[r] - s.first;
  const MappedSums found = sums_of_mapped(row, s.V, map);
  double* sums = s.sums + 3 * r;
  sums[0] = static_cast<double>(found.most), sums[1] = found.total;
  sums[2] = target >= 0 && target < s.V ? static_cast<double>(logit_map::mapped(row[target], map).value) : 0;
}

template <class T>
void gradient_of_mapped_row(const SoftmaxSliceLoss& s, std::int64_t r, const softmax_slice::Row& row, T* to) {
  const logit_map::Constants map(s.map);
  const float* from = s.logits + r * s.V;
  const std::int64_t target = s.targets[r] - s.first;
  const bool here = target >= 0 && target < s.V;
  const float slope = here ? logit_map::mapped(from[target], map).slope : 0;  // before the gradient takes its place
  gradient_of_mapped(to, from, s.V, map, static_cast<float>(row.most), row.factor);
  if (here) to[target] = static_cast<T>(row.d_target * slope);
}

template <class T>
void gradient_of_row(const SoftmaxSliceLoss& s, std::int64_t r, const softmax_slice::Row& row, T* to) {
  if (s.weights[r] == 0) {
    std::memset(static_cast<void*>(to), 0, static_cast<std::size_t>(s.V) * sizeof(T));
    return;
  }
  const float *from = s.logits + r * s.V, most = static_cast<float>(row.most);
  if (s.map != LogitMap{}) return gradient_of_mapped_row(s, r, row, to);
  for_vectors(0, s.V, [&](std::int64_t i, auto count) {
    const f32x16 v = exp_nonpositive(load(from + i, count) - most) * row.factor;
    store(to + i, without_small(v), count);
  });
  const std::int64_t target = s.targets[r] - s.first;
  if (target >= 0 && target < s.V) to[target] = static_cast<T>(row.d_target);
}

}  // namespace

void softmax_slice_sums(const Context&, const SoftmaxSliceSums& s) {
  TESSERA_REQUIRE(s.V > 0, "a slice of no tokens");
  const bool mapped = s.map != LogitMap{};
  parallel_ranges(s.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) mapped ? sums_of_mapped_row(s, r) : sums_of_row(s, r);
  });
}

void softmax_slice_loss(const Context&, const SoftmaxSliceLoss& s) {
  parallel_ranges(s.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const softmax_slice::Row row = softmax_slice::row_of(s, r);
      if (s.losses) s.losses[r] = row.loss;
      if (!s.d_logits) continue;
      with_float_type(s.dtype, "softmax_slice_loss",
                      [&](auto type) { gradient_of_row(s, r, row, static_cast<decltype(type)*>(s.d_logits) + r * s.V); });
    }
  });
}

}  // namespace tessera::kernels::host
