// Says and records that a step stood still, and by whose fault as far as that is known: on rank 0.
#pragma once
#include "train/observe/progress_log.hpp"

namespace tessera {

class Stalls : public Observer {
 public:
  Stalls(const RunParts& run, ProgressLog& progress) : run_(run), progress_(progress) {}
  void phase_ends() override;
  /// Whether the step stood still. The first step of a start or phase does what is done once, and counts for nothing.
  void measure(StepEnd& end) override;
  Verdict after(const StepEnd& end) override;

 private:
  const RunParts& run_;
  ProgressLog& progress_;
  StepPace pace_;
  bool first_ = true;
};

/// "step 812 took 18.3 s, 90 times the median of the steps before it (0.2 s): ..."
std::string describe_stall(std::int64_t step, const Stall& stall, double data_seconds, int ranks, const AwaitedRanks& awaited);

}  // namespace tessera
