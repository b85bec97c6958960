// Rates of kernels over sizes.
#pragma once
#include "machine/profile.hpp"
#include "report/bench.hpp"
#include "report/measure.hpp"

namespace tessera {

/// Products of linear layers, attention, and passes over memory, in a compute type.
ComputeRates measure_compute(Bench& bench, const MeasureSizes& sizes, DType dtype, const std::function<void(const std::string&)>& progress);
/// Products of fp8 codes, on a GPU that has them.
ComputeRates measure_codes(Bench& bench, const MeasureSizes& sizes);
/// Passes over memory alone.
ComputeRates measure_passes(Bench& bench, const MeasureSizes& sizes, DType dtype);
/// Seconds of a call that does next to nothing.
double measure_call(Bench& bench);
/// Seconds that an executor adds to each task of a list, on the host.
double measure_task_overhead();

}  // namespace tessera
