// Families that are known and not in this version.
#pragma once
#include <string_view>
#include <vector>

namespace tessera {

/// A family that becomes supported takes its row, or its type, away.
struct RefusedFamily {
  std::vector<std::string_view> types;    ///< model_type
  std::vector<std::string_view> missing;  ///< what its models have and a deck cannot say, with the keys that say it
};

const std::vector<RefusedFamily>& refused_families();

/// Of a model_type; nullptr where it is supported, or nobody knows it.
const RefusedFamily* refused_family(std::string_view type);

}  // namespace tessera
