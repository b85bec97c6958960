// What a run shows to Prometheus: the latest of each metric, and what is said of the run itself.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "train/observe/metric_table.hpp"

namespace tessera {

/// Of the run, beside its rows.
struct ExposedRun {
  double launched = 0;       ///< seconds since 1970, as all times here
  double unsaved_since = 0;  ///< what a kill would lose began then
  double steps = 0, ranks = 0;
  double save_bytes = 0, free_bytes = 0;
  bool not_finite = false;
};

/// A new one is a row of run_figures().
struct RunFigure {
  std::string_view name;  ///< to Prometheus, without "tessera_"
  double (*value)(const ExposedRun&);
  std::string_view help;
};
std::span<const RunFigure> run_figures();
/// The table as docs/metrics.md has it.
std::string run_figures_table();

using Labels = std::vector<std::pair<std::string, std::string>>;

/// Of rows alone: no clock, no engine and no network.
class ExposedFigures {
 public:
  /// `run` stands at every sample; `info`, what a run is, at tessera_info; `files` names the parts of a mixture.
  ExposedFigures(Labels run, Labels info, std::vector<std::string> files);
  void row(const io::MetricRow& row);
  /// Those that a row has had so far.
  io::Families families(const ExposedRun& state) const;

 private:
  void take(io::Family& family, const Labels& labels, double value);
  /// What the number of a list is of.
  std::string name_of(const Metric& metric, std::size_t index) const;
  Labels run_, info_;
  std::vector<std::string> files_;
  io::Families of_metrics_;  ///< one a metric, in its order
};

}  // namespace tessera
