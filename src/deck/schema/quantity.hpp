// What is written as text with a unit: bytes and times.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "deck/schema/schema.hpp"

namespace tessera {

struct QuantityUnit {
  std::string_view name;
  std::int64_t size;
};
/// What is written as text with a unit, and held as a whole number of the smallest unit.
struct Quantity {
  std::string_view of, smallest;
  std::span<const QuantityUnit> units;
  std::string_view help, most;
};
/// Of a key; null where its values have no unit.
const Quantity* quantity_of(const Key& key);

/// Reads "64 MiB" into the smallest unit. Returns what is wrong and what to do, or an empty text.
std::string assign_quantity(const Key& key, const std::string& text, std::int64_t& out);

}  // namespace tessera
