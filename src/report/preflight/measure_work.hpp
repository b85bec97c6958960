// What a rank does alone, beside all others who do the same: products and copies.
#pragma once
#include <functional>

#include "report/bench.hpp"
#include "report/preflight/judge.hpp"

namespace tessera {

/// Bytes of the bench's memory that this takes.
std::size_t work_bytes(kernels::Backend backend);
/// Products in bf16 and fp32, a copy in memory and, on a GPU, to and from the host; in about `seconds`.
void measure_work(Bench& bench, double seconds, const std::function<void(const std::string&)>& progress, RankMeasures& measures);

}  // namespace tessera
