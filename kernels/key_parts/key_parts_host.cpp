// Bound by memory: each byte is read once and written once, a part of a token at a time.
#include <cstring>

#include "base/check.hpp"
#include "kernels/key_parts/places.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels::host {
namespace {

using key_parts::Places;

Places bytes_of(const KeyParts& p) {
  TESSERA_REQUIRE(key_parts::divides(p), "a key head of {} features in {} parts, of {} ranks from {} on, {} tokens", p.D, p.sharing, p.N,
                  p.first, p.M);
  return key_parts::places_of(p, 1);
}

/// Rows of that many bytes that are worth a thread's while.
std::int64_t part_grain(std::int64_t width) { return std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(width, 1)); }

}  // namespace

void join_key_parts(const Context&, const JoinKeyParts& p) {
  const Places places = bytes_of(p.shape);
  const auto copy = [](std::byte* to, const std::byte* from, std::int64_t bytes) {
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  };
  parallel_ranges(p.shape.M, part_grain(places.width()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t token = begin; token < end; ++token) {
      std::byte* row = static_cast<std::byte*>(p.rows) + token * places.width();
      copy(row, static_cast<const std::byte*>(p.made) + token * places.made_width(), places.queries);
      for (std::int64_t i = 0; i < 2 * places.keys; i += places.part)
        copy(row + places.queries + i, static_cast<const std::byte*>(p.parts) + places.among_parts(token, i), places.part);
    }
  });
}

void spread_key_gradients(const Context&, const SpreadKeyGradients& p) {
  const Places places = bytes_of(p.shape);
  const auto part = static_cast<std::size_t>(places.part);
  parallel_ranges(p.shape.N * p.shape.M, part_grain(2 * places.part), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t rank = row / places.M, token = row % places.M;
      std::byte* to = static_cast<std::byte*>(p.parts) + row * 2 * places.part;
      if (!places.has(rank)) {
        std::memset(to, 0, 2 * part);
        continue;
      }
      const std::byte* from = static_cast<const std::byte*>(p.d_rows) + token * places.width();
      for (const std::int64_t i : {std::int64_t{0}, places.part}) std::memcpy(to + i, from + places.in_row(rank, i), part);
    }
  });
}

}  // namespace tessera::kernels::host
