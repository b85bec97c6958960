// Bound by memory: each byte is read once and written once, a rank's heads of one kind and token at a time.
#include <cstring>

#include "base/check.hpp"
#include "kernels/head_blocks/places.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels::host {
namespace {

/// Calls f(byte of the blocks, byte of the rows, bytes) for each run that lies together in both.
template <class F>
void each_run(const HeadBlocks& p, F f) {
  TESSERA_REQUIRE(p.N > 0 && p.H % p.N == 0 && p.G % p.N == 0 && p.B * p.N * p.T < std::int64_t{1} << 32,
                  "{} query and {} key heads of {} x {} tokens over {} ranks", p.H, p.G, p.B, p.T, p.N);
  const head_blocks::Places places = head_blocks::places_of(p, 1);
  const std::int64_t begins[] = {0, places.queries, places.queries + places.keys}, sizes[] = {places.queries, places.keys, places.keys};
  const std::int64_t rows = p.B * p.N * p.T, width = places.block_width();
  parallel_ranges(rows, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(width, 1)), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      for (int kind = 0; kind < 3; ++kind)
        if (sizes[kind] > 0) f(row * width + begins[kind], places.among_rows(row, begins[kind]), static_cast<std::size_t>(sizes[kind]));
  });
}

}  // namespace

void rows_to_head_blocks(const Context&, const HeadBlocks& p) {
  each_run(p, [to = static_cast<std::byte*>(p.to), from = static_cast<const std::byte*>(p.from)](
                  std::int64_t block, std::int64_t row, std::size_t bytes) { std::memcpy(to + block, from + row, bytes); });
}

void head_blocks_to_rows(const Context&, const HeadBlocks& p) {
  each_run(p, [to = static_cast<std::byte*>(p.to), from = static_cast<const std::byte*>(p.from)](
                  std::int64_t block, std::int64_t row, std::size_t bytes) { std::memcpy(to + row, from + block, bytes); });
}

}  // namespace tessera::kernels::host
