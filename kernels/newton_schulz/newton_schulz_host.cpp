// Bound by its products.
#include <cstring>

#include "base/check.hpp"
#include "kernels/newton_schulz/iteration.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels {
namespace newton_schulz_detail {
namespace {

double block_sum(const bf16* x) {
  f64x8 sum[4] = {};
  for (std::int64_t i = 0; i < norm_block; i += 32)
    unrolled<4>([&](auto k) {
      const f64x8 v = to_f64(x + i + 8 * k);
      sum[k] = fma(v, v, sum[k]);
    });
  return horizontal_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

void copy_rows(const Rows& r) {
  parallel_ranges(r.rows, std::max<std::int64_t>(1, 16384 / r.columns), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      std::memcpy(static_cast<void*>(r.to + i * r.to_step), r.from + i * r.from_step, static_cast<std::size_t>(r.columns) * sizeof(bf16));
  });
}

double squares_of_matrix(const NewtonSchulz& p, const bf16* matrix, double* squares) {
  const std::int64_t n = p.rows * p.columns;
  parallel_ranges(norm_blocks(p), 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const bf16* x = matrix + b * norm_block;
      bf16 last[norm_block] = {};
      if (const std::int64_t rest = n - b * norm_block; rest < norm_block) {
        std::copy_n(x, rest, last);
        x = last;
      }
      squares[b] = block_sum(x);
    }
  });
  double chain[norm_chains] = {};
  for (std::int64_t b = 0; b < norm_blocks(p); ++b) chain[b % norm_chains] += squares[b];
  for (int width = norm_chains / 2; width > 0; width /= 2)
    for (int i = 0; i < width; ++i) chain[i] += chain[i + width];
  return chain[0];
}

void run_on_host(const Context& context, const NewtonSchulz& p) {
  const Places at = places_of(p, Backend::host);
  TESSERA_REQUIRE(is_legal(p), "newton_schulz of {} x {} in {} parts", p.rows, p.columns, p.parts);
  TESSERA_REQUIRE(context.workspace.size() >= at.end, "newton_schulz needs {} bytes of workspace, has {}", at.end,
                  context.workspace.size());
  std::byte* memory = context.workspace.data();
  const Iteration iteration = iteration_of(p.steps);
  auto* x = reinterpret_cast<bf16*>(memory);
  for (std::int64_t part = 0; p.parts > 1 && part < p.parts; ++part) copy_rows(part_of_x(p, x, part));
  const bf16* whole = p.parts > 1 ? x : p.x;
  const double squares = squares_of_matrix(p, whole, reinterpret_cast<double*>(memory + at.squares));
  const float factor = factor_of(squares, iteration.stretch, iteration.least);
  parallel_ranges(p.rows * p.columns, 16384, [&](std::int64_t begin, std::int64_t end) {
    for_vectors(begin, end, [&](std::int64_t i, auto n) { store(x + i, load(whole + i, n) * factor, n); });
  });
  iterate(context, p, at, host::gemm);
  for (std::int64_t part = 0; parts_results(p) && part < p.parts; ++part)
    copy_rows(part_of_result(p, reinterpret_cast<const bf16*>(memory + at.result), part));
}

}  // namespace
}  // namespace newton_schulz_detail

namespace host {

void newton_schulz(const Context& context, const NewtonSchulz& p) { newton_schulz_detail::run_on_host(context, p); }

std::size_t newton_schulz_workspace_bytes(const NewtonSchulz& p) { return newton_schulz_detail::places_of(p, Backend::host).end; }

}  // namespace host

double newton_schulz_flops(std::int64_t rows, std::int64_t columns) {
  const auto m = static_cast<double>(std::min(rows, columns)), n = static_cast<double>(std::max(rows, columns));
  return 5 * (4 * m * m * n + 2 * m * m * m);
}

}  // namespace tessera::kernels
