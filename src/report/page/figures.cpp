#include "report/page/figures.hpp"

#include <algorithm>
#include <cmath>

#include "report/runs/run_summary.hpp"

namespace tessera {
namespace {

constexpr std::size_t recent = 1000;  // steps
constexpr double slow_excess = 0.05;  // of the median

double median(std::vector<double> values) {
  std::erase_if(values, [](double v) { return !std::isfinite(v); });
  if (values.empty()) return 0;
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

double sum(const std::vector<double>* column) {
  double all = 0;
  if (column)
    for (const double v : *column)
      if (std::isfinite(v)) all += v;
  return all;
}

/// Of the newest rows.
double recent_median(const StepColumns& steps, const std::string& name) {
  const std::vector<double>* column = steps.find(name);
  if (!column) return 0;
  return median({column->end() - static_cast<std::ptrdiff_t>(std::min(recent, column->size())), column->end()});
}

std::optional<double> last_finite(const std::vector<double>* column) {
  if (column)
    for (auto at = column->rbegin(); at != column->rend(); ++at)
      if (std::isfinite(*at)) return *at;
  return {};
}

std::map<std::string, double> shares_of_parts(const StepColumns& steps) {
  std::map<std::string, double> seconds;
  double all = 0;
  for (const auto& [part, column] : steps.group("seconds_of/")) seconds[part] = sum(column), all += seconds[part];
  for (auto& [part, of] : seconds) of = all > 0 ? of / all : 0;
  return seconds;
}

}  // namespace

std::vector<SlowRank> slow_ranks(const std::vector<RankTimes>& ranks) {
  std::vector<double> compute;
  for (const RankTimes& rank : ranks) compute.push_back(rank.compute);
  const double usual = median(compute);
  std::vector<SlowRank> slow;
  if (usual <= 0) return slow;
  for (const RankTimes& rank : ranks)
    if (rank.compute > (1 + slow_excess) * usual) slow.push_back({.rank = rank.rank, .excess = rank.compute / usual - 1});
  std::ranges::stable_sort(slow, std::greater(), &SlowRank::excess);
  return slow;
}

RunFigures figures_of_run(const RunHistory& run, const std::optional<StepTraces>& traced) {
  RunFigures f;
  const StepColumns& steps = run.steps;
  f.steps_done = steps.step.empty() ? 0 : steps.step.back();
  f.ranks = std::max(1, static_cast<int>(run.ranks()));
  f.step_seconds = recent_median(steps, "seconds");
  f.tokens_per_second = recent_median(steps, "tokens_per_second");
  for (const bool of_peak : {false, true})
    if (const char* full = of_peak ? "mfu" : "of_product"; steps.find(full))
      f.mfu = Mfu{.full = recent_median(steps, full),
                  .causal = recent_median(steps, of_peak ? "mfu_causal" : "of_product_causal"),
                  .of_peak = of_peak};
  const std::vector<double>* loss = steps.find("loss");
  f.loss = last_finite(loss);
  f.without_loss = loss ? std::ranges::count_if(*loss, [](double v) { return !std::isfinite(v); }) : 0;
  for (const EvaluationRow& row : run.evaluations)
    if (std::isfinite(row.loss) && (!f.best_validation || row.loss < *f.best_validation))
      f.best_validation = row.loss, f.best_step = row.step;
  f.shares = shares_of_parts(steps);
  if (const Goodput g = goodput(run.events, run.work); g.wall > 0) f.goodput = g;
  double stall = 0, saves = 0, seconds = 0;
  for (const SaveRow& save : run.saves) stall += save.stall, seconds += save.seconds, saves += 1;
  const double worked = sum(steps.find("seconds")) + stall;
  f.stall_share = worked > 0 ? stall / worked : 0;
  f.save_seconds = saves > 0 ? seconds / saves : 0;
  f.starts = static_cast<std::int64_t>(run.starts.size());
  bool open = false;
  for (const io::Event& event : run.events) {
    if (event.event == "start") f.killed += open && io::field_text(event.fields, "went_back").empty(), open = true;
    if (event.event == "end") open = false;
  }
  f.warnings = warnings_of_last_start(run.events);
  for (const io::Event& event : run.events)
    if (event.event == "stall")
      f.stalls.push_back({.step = event.step,
                          .seconds = io::field_number(event.fields, "seconds").value_or(0),
                          .usual = io::field_number(event.fields, "usual").value_or(0),
                          .text = io::field_text(event.fields, "text")});
  if (traced) f.slow = slow_ranks(traced->ranks);
  return f;
}

}  // namespace tessera
