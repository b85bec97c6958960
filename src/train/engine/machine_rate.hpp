// What this machine's matrix product reaches, as the yardstick of MFU.
#pragma once
#include <cstdint>
#include <functional>

#include "kernels/context.hpp"
#include "machine/profile.hpp"

namespace tessera {

/// FLOP/s of a square GEMM in `dtype`, of this rank's threads or its GPU: best of a few, of the first size that takes some milliseconds, or
/// of `largest`. Needs up to 3 x largest^2 elements of memory while it runs.
double measure_gemm_rate(DType dtype, kernels::Backend backend, std::int64_t largest = 8192);

/// The same, measured once in a process for each number of ranks that share the node: one that runs again takes what it has found.
double known_gemm_rate(DType dtype, kernels::Backend backend, int local_ranks);

/// Bytes/s that this rank's threads read and write in a copy of `bytes` that no cache holds: best of a few.
double measure_stream_rate(std::int64_t bytes = std::int64_t{64} << 20);

/// The profile that run.machine names. Error(usage) where it cannot be read, or is of machines that compute on something else.
MachineProfile machine_of_run(const Deck& deck);

/// FLOP/s of all ranks that a step's are a share of: the peak of a machine profile, or a product that was measured. What was measured while
/// other programs took the machine may be less than what steps then reach.
class Yardstick {
 public:
  /// The peak of a profile.
  explicit Yardstick(double peak) : rate_(peak), left_(0), is_peak_(true) {}
  /// `again` measures later, at most `times` in a run, since it takes time from the steps.
  Yardstick(double rate, std::function<double()> again, int times) : rate_(rate), again_(std::move(again)), left_(times) {}
  double rate() const { return rate_; }
  bool is_peak() const { return is_peak_; }
  /// Measures again if a step has reached a share `mfu` that cannot be. True if the rate is another now.
  bool remeasure(double mfu);

 private:
  double rate_;
  std::function<double()> again_;
  int left_;
  bool is_peak_ = false;
};

}  // namespace tessera
