// Bound by memory: each byte is read once and written once, a rank's heads of one kind and token at a time.
#include <cstring>

#include "base/check.hpp"
#include "kernels/head_blocks/places.hpp"
#include "kernels/parallel.hpp"
#include "kernels/vector/vector.hpp"

namespace tessera::kernels::host {
namespace {

/// Calls f(byte of the blocks, byte of the rows, bytes) for each run that lies together in both; without key heads where `queries_alone`.
template <class F>
void each_run(const HeadBlocks& p, bool queries_alone, F f) {
  const head_blocks::Places places = head_blocks::places_of(p, 1);
  const std::int64_t begins[] = {0, places.queries, places.queries + places.keys}, sizes[] = {places.queries, places.keys, places.values};
  const std::int64_t rows = p.B * p.N * p.T, width = places.block_width();
  const int kinds = queries_alone || p.G == 0 ? 1 : 3;
  parallel_ranges(rows, std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(width, 1)), [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t row = first; row < last; ++row)
      for (int kind = 0; kind < kinds; ++kind)
        f(row * width + begins[kind], places.among_rows(row, begins[kind]), static_cast<std::size_t>(sizes[kind]));
  });
}

/// Key and value heads that several ranks have, of one token of the first of these ranks.
template <class T>
void sum_keys(const HeadBlocks& p, const head_blocks::Places& places, std::int64_t row) {
  const std::int64_t width = places.block_width(), next = p.T * width;  // the same token of the next rank
  const auto sum_of = [&](std::int64_t begin, std::int64_t heads) {
    const T* from = static_cast<const T*>(p.from) + row * width + begin;
    T* to = static_cast<T*>(p.to) + places.among_rows(row, begin);
    for_vectors(0, heads, [&](std::int64_t i, auto n) {
      f32x16 sum = load_any(from + i, n);
      for (std::int64_t r = 1; r < places.sharing; ++r) sum += load_any(from + r * next + i, n);
      store_any(to + i, sum, n);
    });
  };
  sum_of(places.queries, places.keys), sum_of(places.queries + places.keys, places.values);
}

void require_division(const HeadBlocks& p) {
  TESSERA_REQUIRE(head_blocks::divides(p), "{} query and {} key heads of {} x {} tokens over {} ranks", p.H, p.G, p.B, p.T, p.N);
}

}  // namespace

void rows_to_head_blocks(const Context&, const HeadBlocks& p) {
  require_division(p);
  each_run(p, false,
           [to = static_cast<std::byte*>(p.to), from = static_cast<const std::byte*>(p.from)](
               std::int64_t block, std::int64_t row, std::size_t bytes) { std::memcpy(to + block, from + row, bytes); });
}

void head_blocks_to_rows(const Context&, const HeadBlocks& p) {
  require_division(p);
  const head_blocks::Places places = head_blocks::places_of(p, static_cast<std::int64_t>(size_of(p.dtype)));
  each_run(p, places.sharing > 1,
           [to = static_cast<std::byte*>(p.to), from = static_cast<const std::byte*>(p.from)](
               std::int64_t block, std::int64_t row, std::size_t bytes) { std::memcpy(to + row, from + block, bytes); });
  if (places.sharing == 1) return;
  parallel_ranges(p.B * p.G * p.T, std::max<std::int64_t>(1, 16384 / (places.keys + places.values)),
                  [&](std::int64_t first, std::int64_t last) {
                    for (std::int64_t i = first; i < last; ++i) {
                      const std::int64_t row = i / p.T * places.sharing * p.T + i % p.T;  // (B,G,T) as (B,N,T)
                      with_float_type(p.dtype, "head_blocks", [&](auto type) { sum_keys<decltype(type)>(p, places, row); });
                    }
                  });
}

}  // namespace tessera::kernels::host
