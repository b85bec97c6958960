// Some numbers a row, where the rows themselves have thousands: nothing here takes time.
#include "kernels/expert_blocks/expert_blocks.hpp"

#include <algorithm>
#include <bit>

#include "base/check.hpp"
#include "kernels/expert_blocks/places.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels::host {
namespace {

constexpr std::int64_t rows_of_piece = 4096;

void check(const ExpertBlocks& b) {
  TESSERA_REQUIRE(b.N > 0 && b.E > 0 && b.rows >= 0, "{} blocks of {} rows for {} experts each", b.N, b.rows, b.E);
}

}  // namespace

void label_blocks(const Context&, const LabelBlocks& p) {
  check(p.blocks);
  const auto [N, E, rows] = p.blocks;
  for (std::int64_t n = 0; n < N; ++n)
    for (std::int64_t e = 0; e < E; ++e)
      p.labels[n * p.blocks.labels() + e] = static_cast<std::uint32_t>(p.offsets[n * E + e + 1] - p.offsets[n * E + e]);
  parallel_ranges(N * rows, rows_of_piece, [&, E = E, rows = rows](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t choice = p.sources[row];
      const float weight = choice < 0 ? 0 : p.weights[expert_blocks::slot_of(choice, p.k, p.slots)];
      p.labels[row / rows * p.blocks.labels() + E + row % rows] = std::bit_cast<std::uint32_t>(weight);
    }
  });
}

void plan_arrivals(const Context&, const PlanArrivals& p) {
  check(p.blocks);
  const auto [N, E, rows] = p.blocks;
  p.offsets[0] = 0;
  for (std::int64_t e = 0; e < E; ++e) {
    p.offsets[e + 1] = p.offsets[e];
    for (std::int64_t n = 0; n < N; ++n) p.offsets[e + 1] += expert_blocks::count_of(p, n, e);
  }
  TESSERA_REQUIRE(p.offsets[E] >= 0 && p.offsets[E] <= N * rows, "{} rows have arrived in {} blocks of {}", p.offsets[E], N, rows);
  std::fill(p.order + p.offsets[E], p.order + N * rows, -1);
  parallel_ranges(N * rows, rows_of_piece, [&, E = E, rows = rows](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t n = row / rows, in_block = row % rows;
      const std::int32_t place = expert_blocks::place_of(p, n, in_block);
      p.places[row] = place;
      p.weights[row] = std::bit_cast<float>(p.labels[n * p.blocks.labels() + E + in_block]);
      if (place >= 0) p.order[place] = static_cast<std::int32_t>(row);
    }
  });
}

void collect_rows(const Context&, const CollectRows& p) {
  parallel_ranges(p.M * p.k, rows_of_piece, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t choice = begin; choice < end; ++choice) {
      const std::int32_t row = p.places[choice];
      p.out[expert_blocks::slot_of(choice, p.k, p.slots)] = row < 0 ? 0 : p.rows[row];
    }
  });
}

}  // namespace tessera::kernels::host
