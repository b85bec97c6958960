#include "report/runs/figures.hpp"

#include <algorithm>
#include <cmath>

namespace tessera {

std::optional<double> row_number(const io::MetricRow& row, std::string_view key) {
  const auto found = std::ranges::find(row, key, &io::MetricRow::value_type::first);
  if (found == row.end()) return {};
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  if (const auto* integer = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*integer);
  return {};
}

std::optional<double> field_number(const Json& fields, std::string_view key) {
  const Json* found = fields.find(key);
  return found && found->is_number() ? std::optional(found->get<double>()) : std::nullopt;
}

std::optional<double> median_of(std::vector<double> values) {
  if (values.empty()) return {};
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

Json json_number(const std::optional<double>& value) { return value && std::isfinite(*value) ? Json(*value) : Json(); }

}  // namespace tessera
