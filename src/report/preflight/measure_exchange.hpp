// What ranks exchange, by the paths that a run takes: in pairs, so that a slow one can be told, and all together.
#pragma once
#include <functional>

#include "report/bench.hpp"
#include "report/preflight/judge.hpp"

namespace tessera {

/// Collective over the world, in about `seconds`; of a rank alone nothing.
void measure_exchange(const Bench& bench, double seconds, const std::function<void(const std::string&)>& progress, RankMeasures& measures);

}  // namespace tessera
