// Writes metrics.jsonl, on rank 0.
#pragma once
#include "topology/failure/signals.hpp"
#include "train/observe/observer.hpp"

namespace tessera {

class MetricsLog : public Observer {
 public:
  /// Collective: begins with a row of the start.
  explicit MetricsLog(const RunParts& run);
  Verdict after(const StepEnd& end) override;
  /// A row of something else than a step.
  void record(const io::MetricRow& row);

 private:
  const RunParts& run_;
  std::optional<io::MetricsFile> file_;
};

}  // namespace tessera
