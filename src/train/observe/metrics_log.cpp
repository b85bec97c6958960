#include "train/observe/metrics_log.hpp"

#include <algorithm>

#include "base/clock.hpp"
#include "io/metrics/csv_file.hpp"
#include "io/metrics/event_file.hpp"
#include "topology/failure/signals.hpp"
#include "train/engine/program_identity.hpp"
#include "train/observe/metric_table.hpp"

namespace tessera {
namespace {

/// At the head of what a start adds: which program wrote the rows below it. Its step is the last one before them.
io::MetricRow start_row(const RunParts& run) {
  io::MetricRow row{{"step", run.first_step}, {"ranks", static_cast<std::int64_t>(run.world.ranks())}};
  if (!run.went_back.empty()) row.push_back({"went_back", run.went_back});
  for (const IdentityField& field : program_identity()) {
    std::string name = field.name;
    std::ranges::replace(name, ' ', '_');
    row.push_back({name, field.value});
  }
  return row;
}

}  // namespace

MetricsLog::MetricsLog(const RunParts& run, io::MetricsSink& live) : run_(run), live_(live) {
  run.world.together([&] {
    leave_if_stopped();
    if (run.world.rank() != 0) return;
    file_.emplace(run.folder.metrics(), run.first_step + 1);
    // Those of before, then the start's, as every sink has them.
    if (run.deck.metrics.csv) sinks_.push_back(std::make_unique<io::CsvFile>(run.folder.csv(), metric_columns(), run.folder.metrics()));
    if (run.deck.metrics.tensorboard)
      sinks_.push_back(std::make_unique<io::EventFile>(run.folder.tensorboard(), unix_seconds(), run.folder.metrics()));
    trackers_ = trackers_of(run);
    record(start_row(run));
  });
}

Verdict MetricsLog::after(const StepEnd& end) {
  if (file_) record(row_of_step(end, run_));
  return Verdict::go_on;
}

void MetricsLog::finish(std::int64_t) {
  for (const auto& tracker : trackers_) tracker->end(true);
}

void MetricsLog::record(const io::MetricRow& row) {
  if (!file_) return;
  run_.claim->renew();
  io::MetricRow timed = row;
  timed.insert(timed.begin() + 1, {"time", unix_seconds()});
  file_->write(timed);
  for (const auto& sink : sinks_) sink->write(timed);
  for (const auto& tracker : trackers_) tracker->write(timed);
  live_.write(timed);
}

}  // namespace tessera
