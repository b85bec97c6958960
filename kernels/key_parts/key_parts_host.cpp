// Bound by memory: each byte is read once and written once, a part of a token at a time.
#include <cstring>

#include "base/check.hpp"
#include "kernels/key_parts/places.hpp"
#include "kernels/parallel.hpp"

namespace tessera::kernels::host {
namespace {

using key_parts::Places;

Places bytes_of(const KeyParts& p) {
  TESSERA_REQUIRE(key_parts::divides(p), "key and value heads of {} and {} features in {} parts, of {} ranks from {} on, {} tokens", p.D,
                  p.value_dim(), p.sharing, p.N, p.first, p.M);
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
      copy(row, static_cast<const std::byte*>(p.made) + token * places.own_qkv_width(), places.queries);
      const auto copy_parts = [&](std::int64_t begin, std::int64_t end, std::int64_t part) {
        for (std::int64_t i = begin; i < end; i += part)
          copy(row + places.queries + i, static_cast<const std::byte*>(p.parts) + places.among_parts(token, i), part);
      };
      copy_parts(0, places.keys, places.key_part), copy_parts(places.keys, places.keys + places.values, places.value_part);
    }
  });
}

void spread_key_gradients(const Context&, const SpreadKeyGradients& p) {
  const Places places = bytes_of(p.shape);
  const auto keys = static_cast<std::size_t>(places.key_part), values = static_cast<std::size_t>(places.value_part);
  parallel_ranges(p.shape.N * p.shape.M, part_grain(places.part()), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int64_t rank = row / places.M, token = row % places.M;
      std::byte* to = static_cast<std::byte*>(p.parts) + row * places.part();
      if (!places.has(rank)) {
        std::memset(to, 0, keys + values);
        continue;
      }
      const std::byte* from = static_cast<const std::byte*>(p.d_rows) + token * places.width();
      std::memcpy(to, from + places.in_row(rank, 0), keys);
      std::memcpy(to + keys, from + places.in_row(rank, places.key_part), values);
    }
  });
}

}  // namespace tessera::kernels::host
