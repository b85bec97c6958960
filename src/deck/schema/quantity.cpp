#include "deck/schema/quantity.hpp"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "deck/schema/value.hpp"

namespace tessera {
namespace {

// Largest first in each family: printing takes the first unit (of bytes: the first binary one) that divides the value.
constexpr QuantityUnit byte_units[] = {{"TiB", 1ll << 40}, {"GiB", 1ll << 30},    {"MiB", 1ll << 20},
                                       {"KiB", 1ll << 10}, {"TB", 1000000000000}, {"GB", 1000000000},
                                       {"MB", 1000000},    {"KB", 1000},          {"B", 1}};
constexpr QuantityUnit time_units[] = {{"d", 86400}, {"h", 3600}, {"min", 60}, {"s", 1}};

constexpr Quantity bytes_quantity{"bytes", "bytes", byte_units,
                                  "write for example \"64 MiB\" (units: B, KiB, MiB, GiB, TiB, KB, MB, GB, TB)", "8 million TiB"};
constexpr Quantity time_quantity{"time", "seconds", time_units, "write for example \"30 min\" (units: s, min, h, d)",
                                 "100 million million d"};

}  // namespace

const Quantity* quantity_of(const Key& key) {
  return key.type == KeyType::bytes ? &bytes_quantity : key.type == KeyType::duration ? &time_quantity : nullptr;
}

std::string assign_quantity(const Key& key, const std::string& text, std::int64_t& out) {
  const Quantity& q = *quantity_of(key);
  double number = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  std::string_view unit(end, static_cast<std::size_t>(text.data() + text.size() - end));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  if (error != std::errc{}) return fmt::format("{} is not a quantity of {}; {}", toml_string(text), q.of, q.help);
  if (unit.empty()) return fmt::format("{} has no unit; {}", toml_string(text), q.help);
  for (const QuantityUnit& u : q.units) {
    if (u.name != unit) continue;
    double value = number * static_cast<double>(u.size);
    if (!std::isfinite(value) || std::abs(value) >= 9e18) return fmt::format("{} is out of range: at most {}", toml_string(text), q.most);
    if (value != std::floor(value)) return fmt::format("{} is not a whole number of {}", toml_string(text), q.smallest);
    // Integers of the smallest unit may exceed what a double holds: read those exactly.
    out = static_cast<std::int64_t>(value);
    if (std::int64_t whole = 0; std::from_chars(text.data(), end, whole).ptr == end) out = whole * u.size;
    return {};
  }
  return fmt::format("{} is not a unit of {}; {}", toml_string(unit), q.of, q.help);
}

}  // namespace tessera
