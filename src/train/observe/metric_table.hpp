// THE table of what a run records. A new figure of a step is a row here; metrics.jsonl, what Prometheus reads and docs/metrics.md are made
// of it.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "io/metrics/families.hpp"
#include "train/observe/observer.hpp"

namespace tessera {

/// Of which row of metrics.jsonl.
enum class MetricOf : std::uint8_t { any, step, evaluation, save, straggler };

/// What of a metric does not follow from its name.
struct Shown {
  std::string_view many = "";  ///< it is a list, or numbers with names: what each is of
  std::string_view name = "";  ///< to Prometheus, where it is not the metric's own
  io::FamilyType type = io::FamilyType::gauge;
};

struct Metric {
  std::string_view name, unit;
  MetricOf of = MetricOf::step;
  /// Of a step: none where this run has no such figure. Null of others, which their observers write.
  std::optional<io::MetricValue> (*value)(const StepEnd&, const RunParts&) = nullptr;
  std::string_view help;
  Shown shown = {};
};

/// To Prometheus: "tessera_grad_norm".
std::string exposed_name(const Metric& metric);

/// In the order of a row's keys.
std::span<const Metric> metrics();
io::MetricRow row_of_step(const StepEnd& end, const RunParts& run);
/// Names of those that are one number: what a table of rows has as columns.
std::vector<std::string> metric_columns();
/// The table as docs/metrics.md has it.
std::string metrics_page_table();

}  // namespace tessera
