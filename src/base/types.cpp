#include "base/types.hpp"

#include <fmt/format.h>
#include <cmath>

namespace tessera {

std::optional<DType> float_type_of(std::string_view name) {
  for (const TypeRow& row : type_rows)
    if (is_float(row.type) && row.name == name) return row.type;
  return std::nullopt;
}

std::int64_t Shape::elements() const {
  std::int64_t n = 1;
  for (auto d : dims) n *= d;
  return n;
}

std::string Shape::str() const { return dims.empty() ? "scalar" : fmt::format("{}", fmt::join(dims, " x ")); }

std::string human_bytes(double bytes) {
  const char* units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  int u = 0;
  // A value that would round up to 1024 of its unit is shown in the next one.
  while (std::abs(bytes) >= (u == 0 ? 1023.5 : 1023.995) && u < 5) bytes /= 1024, ++u;
  return u == 0 ? fmt::format("{:.0f} B", bytes) : fmt::format("{:.2f} {}", bytes, units[u]);
}

std::string human_count(double count) {
  const char* units[] = {"", " K", " M", " B", " T", " P", " E"};
  int u = 0;
  while (std::abs(count) >= (u == 0 ? 999.5 : 999.995) && u < 6) count /= 1000, ++u;
  return u == 0 ? fmt::format("{:.0f}", count) : fmt::format("{:.2f}{}", count, units[u]);
}

}  // namespace tessera
