#include "train/observe/exposed_figures.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/printable.hpp"

namespace tessera {
namespace {

constexpr RunFigure figures_of_run[] = {
    {"run_steps", [](const ExposedRun& s) { return s.steps; }, "Steps that the run will have at its end."},
    {"ranks", [](const ExposedRun& s) { return s.ranks; }, "Ranks of this start."},
    {"launch_time_seconds", [](const ExposedRun& s) { return s.launched; }, "Time when this start was launched, since 1970 in UTC."},
    {"unsaved_since_time_seconds", [](const ExposedRun& s) { return s.unsaved_since; },
     "Time since when a kill would lose work: the newest checkpoint's save, or this start."},
    {"save_bytes", [](const ExposedRun& s) { return s.save_bytes; }, "Size of a checkpoint on the disk."},
    {"free_bytes", [](const ExposedRun& s) { return s.free_bytes; }, "Free space on that disk, at most ten seconds and a step old."},
    {"not_finite", [](const ExposedRun& s) { return s.not_finite ? 1.0 : 0.0; },
     "1 if loss or gradient of the last step were not finite, which ends the run; else 0."},
};

/// From a millisecond to quarters of an hour: 1, 2.5 and 5 of each power of ten.
std::vector<double> bounds_of_seconds() {
  return {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500, 1000};
}

Labels join(Labels labels, const Labels& more) {
  labels.insert(labels.end(), more.begin(), more.end());
  return labels;
}

}  // namespace

std::span<const RunFigure> run_figures() { return figures_of_run; }

std::string run_figures_table() {
  std::string text = "| Prometheus | what |\n|---|---|\n";
  for (const RunFigure& figure : figures_of_run) text += fmt::format("| `tessera_{}` | {} |\n", figure.name, figure.help);
  return text;
}

ExposedFigures::ExposedFigures(Labels run, Labels info, std::vector<std::string> files)
    : run_(std::move(run)), info_(std::move(info)), files_(std::move(files)) {
  for (const Metric& metric : metrics())
    of_metrics_.push_back({.name = exposed_name(metric),
                           .help = fmt::format("{}{}", metric.help, metric.unit.empty() ? "" : fmt::format(" Unit: {}.", metric.unit)),
                           .type = metric.shown.type});
}

std::string ExposedFigures::name_of(const Metric& metric, std::size_t index) const {
  return metric.shown.many == "file" && index < files_.size() ? printable_name(files_[index]) : std::to_string(index);
}

void ExposedFigures::take(io::Family& family, const Labels& labels, double value) {
  const Labels all = join(run_, labels);
  auto sample = std::ranges::find(family.samples, all, &io::FamilySample::labels);
  if (sample == family.samples.end()) {
    family.samples.push_back({.labels = all, .histogram = io::Histogram(bounds_of_seconds())});
    sample = family.samples.end() - 1;
  }
  if (family.type == io::FamilyType::gauge) sample->value = value;
  if (family.type == io::FamilyType::counter && std::isfinite(value)) sample->value += value;
  if (family.type == io::FamilyType::histogram && std::isfinite(value)) sample->histogram.add(value);
}

void ExposedFigures::row(const io::MetricRow& row) {
  for (const auto& [key, value] : row) {
    const auto metric = std::ranges::find(metrics(), key, &Metric::name);
    if (metric == metrics().end()) continue;  // of a start
    io::Family& family = of_metrics_[static_cast<std::size_t>(metric - metrics().begin())];
    const std::string many(metric->shown.many);
    if (const auto* i = std::get_if<std::int64_t>(&value)) take(family, {}, static_cast<double>(*i));
    if (const auto* d = std::get_if<double>(&value)) take(family, {}, *d);
    if (const auto* list = std::get_if<std::vector<std::int64_t>>(&value))
      for (std::size_t i = 0; i < list->size(); ++i) take(family, {{many, name_of(*metric, i)}}, static_cast<double>((*list)[i]));
    if (const auto* named = std::get_if<io::NamedNumbers>(&value))
      for (const auto& [name, number] : *named) take(family, {{many, printable_name(name)}}, number);
  }
}

io::Families ExposedFigures::families(const ExposedRun& state) const {
  io::Families all;
  all.push_back({.name = "tessera_info", .help = "Labels that describe the run.", .samples = {{.labels = join(run_, info_), .value = 1}}});
  for (const RunFigure& figure : figures_of_run)
    all.push_back({.name = fmt::format("tessera_{}", figure.name),
                   .help = std::string(figure.help),
                   .samples = {{.labels = run_, .value = figure.value(state)}}});
  for (const io::Family& family : of_metrics_)
    if (!family.samples.empty()) all.push_back(family);
  return all;
}

}  // namespace tessera
