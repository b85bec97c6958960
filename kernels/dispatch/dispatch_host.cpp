// The plan is a counting sort of a few thousand integers on one thread; all else is bound by memory, a row at a time.
#include "kernels/dispatch/dispatch.hpp"

#include <cstring>

#include "base/check.hpp"
#include "kernels/dispatch/slots.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

std::int64_t dispatch_rows(std::int64_t columns) { return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(columns, 1)); }

template <class T>
void combine(const CombineRows& p, std::int64_t m) {
  const bool weighs_shared = p.shared && p.weighs_shared;
  const std::int64_t slots = p.k + (weighs_shared ? 1 : 0);
  const auto* rows = static_cast<const T*>(p.rows);
  const T* shared = p.shared ? static_cast<const T*>(p.shared) + m * p.C : nullptr;
  const T* addend = p.addend ? static_cast<const T*>(p.addend) + m * p.C : nullptr;
  const float* weights = p.weights ? p.weights + m * slots : nullptr;
  T* out = static_cast<T*>(p.out) + m * p.C;
  for_vectors(0, p.C, [&](std::int64_t i, auto n) {
    f32x16 sum{};
    for (std::int64_t j = 0; j < p.k; ++j) {
      const std::int64_t row = p.places[m * p.k + j];
      if (row >= 0) sum += load_any(rows + row * p.C + i, n) * (weights ? weights[j] : 1.0f);
    }
    if (shared) sum += load_any(shared + i, n) * (weights && weighs_shared ? weights[p.k] : 1.0f);
    if (addend) sum += load_any(addend + i, n);
    store_any(out + i, sum, n);
  });
}

template <class T>
void weigh(const WeighRows& p, std::int64_t row) {
  const std::int64_t slot = slot_of(p, row);
  if (slot < 0) return;
  T *d = static_cast<T*>(p.d) + row * p.F, *a = static_cast<T*>(p.a) + row * p.F;
  const float weight = p.weights[slot];
  p.d_weights[slot] = fold<T>(p.F, [&](std::int64_t i, auto n, f32x16& sum) {
    const f32x16 x = load_any(a + i, n), y = load_any(d + i, n);
    sum = fma(x, y, sum);
    store_any(a + i, x * weight, n);
    store_any(d + i, y * weight, n);
  });
}

}  // namespace

void plan_dispatch(const Context&, const PlanDispatch& p) {
  TESSERA_REQUIRE(p.E > 0 && p.blocks > 0 && p.E % p.blocks == 0 && p.rows % p.blocks == 0 && p.rows / p.blocks >= p.rows_of_a_block(),
                  "{} choices, {} experts of capacity factor {}, and {} rows in {} blocks", p.M * p.k, p.E, p.capacity_factor, p.rows,
                  p.blocks);
  std::fill_n(p.counts, p.E, 0);
  std::int64_t choices = 0;
  for (std::int64_t i = 0; i < p.M * p.k; ++i) {
    TESSERA_REQUIRE(p.experts[i] >= 0 && p.experts[i] <= p.E, "choice {} is expert {} of {}", i, p.experts[i], p.E);
    if (p.experts[i] < p.E) ++p.counts[p.experts[i]], ++choices;
  }
  const std::int64_t capacity = expert_capacity(p.capacity_factor, choices / p.k, p.k, p.E);
  p.offsets[0] = 0;
  for (std::int64_t e = 0; e < p.E; ++e)
    p.offsets[e + 1] = p.offsets[e] + static_cast<std::int32_t>(std::min<std::int64_t>(p.counts[e], capacity));
  std::fill_n(p.sources, p.rows, -1);
  // While rows are dealt out, counts hold how many of each expert have come.
  std::fill_n(p.counts, p.E, 0);
  for (std::int64_t i = 0; i < p.M * p.k; ++i) {
    const std::int32_t e = p.experts[i];
    p.places[i] = -1;
    if (e == p.E) continue;
    const std::int32_t number = p.counts[e]++;
    if (number < capacity) p.places[i] = static_cast<std::int32_t>(first_row(p, e)) + number;
    if (p.places[i] >= 0) p.sources[p.places[i]] = static_cast<std::int32_t>(i);
  }
}

std::size_t plan_dispatch_workspace_bytes(const PlanDispatch&) { return 0; }

void gather_rows(const Context&, const GatherRows& p) {
  const std::size_t bytes = static_cast<std::size_t>(p.C) * size_of(p.dtype);
  auto* out = static_cast<std::byte*>(p.out);
  const auto* in = static_cast<const std::byte*>(p.in);
  parallel_ranges(p.rows, dispatch_rows(p.C), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      std::byte* to = out + static_cast<std::size_t>(row) * bytes;
      if (p.sources[row] < 0)
        std::memset(to, 0, bytes);
      else
        std::memcpy(to, in + static_cast<std::size_t>(p.sources[row] / p.k) * bytes, bytes);
    }
  });
}

void combine_rows(const Context&, const CombineRows& p) {
  with_float_type(p.dtype, "combine_rows", [&](auto type) {
    parallel_ranges(p.M, dispatch_rows(p.C), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t m = begin; m < end; ++m) combine<decltype(type)>(p, m);
    });
  });
}

void weigh_rows(const Context&, const WeighRows& p) {
  with_float_type(p.dtype, "weigh_rows", [&](auto type) {
    parallel_ranges(p.rows, dispatch_rows(p.F), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) weigh<decltype(type)>(p, row);
    });
  });
}

}  // namespace tessera::kernels::host
