// Numbers of rows and events, and of many one.
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "base/json.hpp"
#include "io/metrics/metrics.hpp"

namespace tessera {

/// None where the row has no such number.
std::optional<double> row_number(const io::MetricRow& row, std::string_view key);
std::optional<double> field_number(const Json& fields, std::string_view key);
/// The lower of the two in the middle; none of none.
std::optional<double> median_of(std::vector<double> values);
/// Null for what JSON does not have.
Json json_number(const std::optional<double>& value);

}  // namespace tessera
