#include "report/page/charts.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "base/json.hpp"
#include "report/page/reduce.hpp"

namespace tessera {
namespace {

constexpr std::size_t most_sources = 24;

struct ChartRow {
  const char *id, *title, *unit;
  std::vector<std::pair<std::string, std::string>> series;
  bool logarithmic = false;
  const char *absent = "", *help = "";
};

/// Each stands where one of its columns has a number, or where it says why none has.
const std::vector<ChartRow>& chart_rows() {
  static const std::vector<ChartRow> rows = {
      {"loss", "Loss", "nats a token", {{"loss", "training"}}, false, "", "Mean over a batch's targets; points are evaluations."},
      {"speed", "Throughput", "tokens/s", {{"tokens_per_second", "tokens/s"}}, false, "", "Of all ranks, without padding."},
      {"mfu",
       "MFU",
       "",
       {{"mfu", "all of attention"}, {"mfu_causal", "causal attention"}},
       false,
       "",
       "Share of the peak in the machine's profile, under both counts of attention."},
      {"product",
       "Share of the measured product",
       "",
       {{"of_product", "all of attention"}, {"of_product_causal", "causal attention"}},
       false,
       "",
       "Share of the rate of a product that the run measured at its start. This is not MFU: set run.machine to a profile with a peak."},
      {"seconds", "Time of a step", "s", {{"seconds", "seconds"}}, false, "", "From reading a batch to the end of its step."},
      {"norm", "Norm of the gradient", "", {{"grad_norm", "before clipping"}}, true, "", ""},
      {"rate", "Learning rate", "", {{"lr", "rate"}}, false, "", ""},
      {"scale", "Loss scale", "", {{"loss_scale", "scale"}}, true, "", "Factor of losses in fp16."},
      {"router",
       "Routers",
       "",
       {{"router_balance", "balance"}, {"most_loaded", "fullest expert"}, {"router_z", "z"}},
       false,
       "",
       "Balance and load are 1 if all experts have equal shares."},
      {"dropped", "Choices of experts that were dropped", "", {{"dropped_share", "share"}}, false, "", ""},
  };
  return rows;
}

bool has_number(const StepColumns& steps, const std::string& name) {
  const std::vector<double>* column = steps.find(name);
  return column && std::ranges::any_of(*column, [](double v) { return std::isfinite(v); });
}

/// One of a file each; of very many the first.
Chart chart_of_sources(const RunHistory& run) {
  Chart chart{.id = "sources",
              .title = "Loss by data source",
              .unit = "nats a token",
              .series = {},
              .absent = "Loss by data source: `data.train` with several files."};
  for (const auto& [path, column] : run.steps.group("loss_of_files/"))
    if (chart.series.size() < most_sources)
      chart.series.emplace_back("loss_of_files/" + path, std::filesystem::path(path).filename().string());
  std::multiset<std::string> names;
  for (const auto& [column, name] : chart.series) names.insert(name);
  for (auto& [column, name] : chart.series)
    if (names.count(name) > 1) name = column.substr(column.find('/') + 1);
  return chart;
}

Chart chart_of_parts(const RunHistory& run) {
  Chart chart{.id = "parts",
              .title = "Time of a step by part",
              .unit = "s",
              .series = {},
              .stacked = true,
              .clipped = true,
              .absent =
                  "Time of a step by part, and how long each rank computes: `run.breakdown_every=50`, at no cost on the host and for one "
                  "step in 50 on a GPU.",
              .help = "On rank 0; communication and copies only if no compute hides them."};
  for (const auto& [part, column] : run.steps.group("seconds_of/"))
    if (has_number(run.steps, "seconds_of/" + part)) chart.series.emplace_back("seconds_of/" + part, part);
  return chart;
}

Chart chart_of_memory(const RunHistory& run) {
  Chart chart{.id = "memory-use",
              .title = "Memory in use",
              .unit = "bytes",
              .series = {},
              .help = "On rank 0: of the process, of its GPU by all processes, and of the arenas, as planned."};
  for (const auto& [name, column] : run.steps.group("memory/"))
    if (has_number(run.steps, "memory/" + name)) chart.series.emplace_back("memory/" + name, name);
  return chart;
}

std::string evaluations_json(const RunHistory& run) {
  std::vector<double> steps, losses;
  // Of very many the last of each bucket: their loss has no spikes.
  for (const std::size_t end : bucket_ends(run.evaluations.size(), most_points)) {
    steps.push_back(static_cast<double>(run.evaluations[end - 1].step));
    losses.push_back(run.evaluations[end - 1].loss);
  }
  return fmt::format("{{\"step\":{},\"loss\":{}}}", number_list(steps, 15), number_list(losses));
}

}  // namespace

std::vector<Chart> charts_of(const RunHistory& run) {
  std::vector<Chart> charts;
  for (const ChartRow& row : chart_rows()) {
    Chart chart{.id = row.id,
                .title = row.title,
                .unit = row.unit,
                .series = {},
                .logarithmic = row.logarithmic,
                .clipped = row.id == std::string_view("seconds"),
                .absent = row.absent,
                .help = row.help};
    for (const auto& [column, name] : row.series)
      if (has_number(run.steps, column)) chart.series.emplace_back(column, name);
    if (!chart.series.empty() || !chart.absent.empty()) charts.push_back(std::move(chart));
    if (row.id == std::string_view("loss")) charts.push_back(chart_of_sources(run));
  }
  if (Chart memory = chart_of_memory(run); !memory.series.empty()) charts.push_back(std::move(memory));
  charts.push_back(chart_of_parts(run));
  return charts;
}

Json charts_json(const std::vector<Chart>& charts) {
  Json list = Json::array();
  for (const Chart& chart : charts) {
    if (chart.series.empty()) continue;
    Json series = Json::array();
    for (const auto& [column, name] : chart.series) series.push_back(Json::array({column, name}));
    list.push_back({{"id", chart.id},
                    {"title", chart.title},
                    {"unit", chart.unit},
                    {"stacked", chart.stacked},
                    {"log", chart.logarithmic},
                    {"clip", chart.clipped},
                    {"series", series}});
  }
  return list;
}

std::string chart_numbers(const RunHistory& run, const std::vector<Chart>& charts) {
  const StepColumns& steps = run.steps;
  std::size_t columns = 2;
  for (const Chart& chart : charts) columns += chart.series.size() * 3;
  const auto ends = bucket_ends(steps.rows(), std::min(most_points, most_numbers / columns));
  const bool reduced = ends.size() < steps.rows();
  std::vector<double> step, time;
  for (const std::size_t end : ends) {
    step.push_back(static_cast<double>(steps.step[end - 1]));
    time.push_back(steps.time[end - 1] - steps.time.front());
  }
  std::string text =
      fmt::format("{{\"step\":{},\"time\":{},\"rows\":{},\"columns\":{{", number_list(step, 15), number_list(time, 9), steps.rows());
  bool first = true;
  for (const Chart& chart : charts)
    for (const auto& [name, label] : chart.series) {
      const ReducedColumn column = reduce_column(*steps.find(name), ends, chart.logarithmic);
      text += fmt::format("{}{}:{{\"mean\":{}", first ? "" : ",", Json(name).dump(-1, BadText::replace), number_list(column.mean));
      if (reduced && !chart.stacked) text += fmt::format(",\"low\":{},\"high\":{}", number_list(column.low), number_list(column.high));
      text += "}";
      first = false;
    }
  return text + "},\"evaluations\":" + evaluations_json(run) + "}";
}

}  // namespace tessera
