// Who computes what of things that are whole at one rank each. Pure functions.
#pragma once
#include <span>
#include <vector>

namespace tessera {

/// Shares things out over `members`: the costliest first, each to who has the least so far, and of equals to the first. Returns the member
/// of each (Graham's LPT: no member has more than 4/3 of the best).
std::vector<int> longest_first(std::span<const double> costs, int members);

}  // namespace tessera
