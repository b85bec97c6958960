// Shows the latest figures to Prometheus, on rank 0: over HTTP (metrics.prometheus), in a file for a node exporter
// (metrics.prometheus_folder).
#pragma once
#include <memory>

#include "io/metrics/prometheus.hpp"
#include "io/metrics/sink.hpp"
#include "train/observe/exposed_figures.hpp"

namespace tessera {

/// Of rank 0, before any work: listens where the deck says, else null. Error(environment) where that cannot be, or the folder is none.
std::unique_ptr<io::MetricsEndpoint> open_exposition(const MetricsKeys& keys);

/// RUN/prometheus.json and the file for a node exporter stand while the run goes on, and stay after a failure: what they name is then
/// found to be down, or old. An end in good order takes them away.
class Exposition : public Observer, public io::MetricsSink {
 public:
  explicit Exposition(const RunParts& run);
  /// Of a step that ends the run, before it does.
  Verdict after(const StepEnd& end) override;
  void write(const io::MetricRow& row) override;
  void finish(std::int64_t done) override;

 private:
  void look_at_disk();
  void publish();
  const RunParts& run_;
  std::optional<ExposedFigures> figures_;  ///< rank 0's, with either key
  ExposedRun state_;
  double looked_ = 0;  ///< at the disk, by now_seconds()
  std::optional<io::MetricsTextFile> text_file_;
};

}  // namespace tessera
