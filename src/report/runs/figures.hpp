// Of many numbers one, and as JSON has them.
#pragma once
#include <optional>
#include <vector>

#include "base/json.hpp"

namespace tessera {

/// The lower of the two in the middle; none of none.
std::optional<double> median_of(std::vector<double> values);
/// Null for what JSON does not have.
Json json_number(const std::optional<double>& value);

}  // namespace tessera
