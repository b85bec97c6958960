// The row pass is bound by memory: a row (V floats) is read once from memory and revisited in the second-level cache.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/check.hpp"
#include "kernels/cross_entropy/cross_entropy.hpp"
#include "kernels/cross_entropy/mapped_row_host.hpp"
#include "kernels/cross_entropy/row_host.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

// A row is walked once from memory, in blocks that stay in the first-level cache: each block's terms are relative to the maximum so far,
// which is kept, so that the second walk (from the second-level cache) can bring all to one scale. Block sums are added in fp64, so the
// error does not grow with V. Blocks begin on cache lines, since a vector that crosses lines costs two accesses; the workspace is aligned,
// so where lines begin depends on the row alone.
struct RowWalk {
  static constexpr std::int64_t most_blocks = 512;
  std::int64_t head, block, blocks;
  RowWalk(const float* row, std::int64_t V) {
    auto address = reinterpret_cast<std::uintptr_t>(row);
    head = std::min<std::int64_t>(V, static_cast<std::int64_t>((64 - address % 64) % 64 / sizeof(float)));
    block = std::max<std::int64_t>(1024, round_up(ceil_div(V, most_blocks - 2), lanes));
    blocks = 1 + ceil_div(V - head, block);
  }
  std::int64_t begin(std::int64_t i) const { return i == 0 ? 0 : head + (i - 1) * block; }
  std::int64_t end(std::int64_t i, std::int64_t V) const { return i == 0 ? head : std::min(V, head + i * block); }
};

void row_without_loss(const SoftmaxLossRows& s, std::int64_t r) {
  s.losses[r] = 0;
  const std::size_t bytes = static_cast<std::size_t>(s.V) * size_of(s.dtype);
  if (s.d_logits) std::memset(static_cast<std::byte*>(s.d_logits) + static_cast<std::size_t>(r) * bytes, 0, bytes);
}

template <bool gradient>
void loss_row(const SoftmaxLossRows& s, std::int64_t r) {
  float* row = s.logits + r * s.V;
  const auto weight = static_cast<double>(s.weights[r]);
  if (weight == 0) return row_without_loss(s, r);
  std::int64_t target = s.targets[r];
  double target_logit = static_cast<double>(row[target]), total = 0;
  float most = -INFINITY, maxima[RowWalk::most_blocks];
  RowWalk walk(row, s.V);
  for (std::int64_t i = 0; i < walk.blocks; ++i) {
    float *x = row + walk.begin(i), before = most;
    std::int64_t n = walk.end(i, s.V) - walk.begin(i);
    maxima[i] = most = maximum_of(x, n, most);
    if (n == 0) continue;
    if (most > before) total *= std::exp(static_cast<double>(before) - static_cast<double>(most));
    total += static_cast<double>(exponentials_of<gradient>(x, n, most));
  }
  s.losses[r] = static_cast<float>(weight * (std::log(total) + static_cast<double>(most) - target_logit));
  if constexpr (gradient) {
    const double grad_scale = weight * static_cast<double>(*s.grad_scale);
    auto write = [&](auto* to) {
      using T = std::remove_pointer_t<decltype(to)>;
      for (std::int64_t i = 0; i < walk.blocks; ++i) {
        double factor = grad_scale / total * std::exp(static_cast<double>(maxima[i]) - static_cast<double>(most));
        scale(to + walk.begin(i), row + walk.begin(i), walk.end(i, s.V) - walk.begin(i), static_cast<float>(factor));
      }
      // The target's probability minus one is formed before it is rounded to T.
      double probability = std::exp(target_logit - static_cast<double>(most)) / total;
      to[target] = static_cast<T>(static_cast<float>((probability - 1) * grad_scale));
    };
    with_float_type(s.dtype, "softmax_loss_rows", [&](auto type) { write(static_cast<decltype(type)*>(s.d_logits) + r * s.V); });
  }
}

/// The same where logits are mapped.
template <bool gradient>
void mapped_loss_row(const SoftmaxLossRows& s, std::int64_t r) {
  const float* row = s.logits + r * s.V;
  const auto weight = static_cast<double>(s.weights[r]);
  if (weight == 0) return row_without_loss(s, r);
  const logit_map::Constants map(s.map);
  const MappedSums sums = sums_of_mapped(row, s.V, map);
  const std::int64_t target = s.targets[r];
  const logit_map::Mapped<float> at_target = logit_map::mapped(row[target], map);
  const double above = static_cast<double>(at_target.value) - static_cast<double>(sums.most);
  s.losses[r] = static_cast<float>(weight * (std::log(sums.total) - above));
  if constexpr (gradient) {
    const double grad_scale = weight * static_cast<double>(*s.grad_scale);
    with_float_type(s.dtype, "softmax_loss_rows", [&](auto type) {
      using T = decltype(type);
      T* to = static_cast<T*>(s.d_logits) + r * s.V;
      gradient_of_mapped(to, row, s.V, map, sums.most, static_cast<float>(grad_scale / sums.total));
      const double d_target = (std::exp(above) / sums.total - 1) * grad_scale * static_cast<double>(at_target.slope);
      to[target] = static_cast<T>(static_cast<float>(d_target));
    });
  }
}

void check_targets(const SoftmaxLossRows& s) {
  for (std::int64_t i = 0; i < s.rows; ++i)
    TESSERA_REQUIRE(s.weights[i] == 0 || (s.targets[i] >= 0 && s.targets[i] < s.V), "target {} of row {} is outside the vocabulary of {}",
                    s.targets[i], i, s.V);
}

}  // namespace

void softmax_loss_rows(const Context&, const SoftmaxLossRows& s) {
  check_targets(s);
  const bool mapped = s.map != LogitMap{};
  auto* row = s.d_logits ? (mapped ? mapped_loss_row<true> : loss_row<true>) : (mapped ? mapped_loss_row<false> : loss_row<false>);
  parallel_ranges(s.rows, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) row(s, r);
  });
}

void sum_losses(const Context&, const SumLosses& s) {
  double total = 0;
  for (std::int64_t i = 0; i < s.M; ++i) total += static_cast<double>(s.losses[i]);
  *s.sum = total;
}

}  // namespace tessera::kernels::host
