// THE table of what a run records. A new figure of a step is a row here; metrics.jsonl and docs/metrics.md are made of it.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "train/observe/observer.hpp"

namespace tessera {

/// Of which row of metrics.jsonl.
enum class MetricOf : std::uint8_t { any, step, evaluation, save };

struct Metric {
  std::string_view name, unit;
  MetricOf of = MetricOf::step;
  /// Of a step: none where this run has no such figure. Null of others, which their observers write.
  std::optional<io::MetricValue> (*value)(const StepEnd&, const RunParts&) = nullptr;
  std::string_view help;
  bool many = false;  ///< a list, or numbers with names
};

/// In the order of a row's keys.
std::span<const Metric> metrics();
io::MetricRow row_of_step(const StepEnd& end, const RunParts& run);
/// Names of those that are one number: what a table of rows has as columns.
std::vector<std::string> metric_columns();
/// The table as docs/metrics.md has it.
std::string metrics_page_table();

}  // namespace tessera
