// Writes metrics.jsonl and what [metrics] asks for beside it, on rank 0.
#pragma once
#include "io/metrics/sink.hpp"
#include "train/observe/trackers.hpp"

namespace tessera {

class MetricsLog : public Observer {
 public:
  /// Collective: begins with a row of the start. `live` gets the rows of this start alone.
  MetricsLog(const RunParts& run, io::MetricsSink& live);
  Verdict after(const StepEnd& end) override;
  void finish(std::int64_t done) override;
  /// A row of something else than a step.
  void record(const io::MetricRow& row);

 private:
  const RunParts& run_;
  io::MetricsSink& live_;
  std::optional<io::MetricsFile> file_;
  std::vector<std::unique_ptr<io::MetricsSink>> sinks_;
  std::vector<std::unique_ptr<io::Tracker>> trackers_;
};

}  // namespace tessera
