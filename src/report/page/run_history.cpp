#include "report/page/run_history.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <unordered_map>

#include "base/check.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "io/metrics/sink.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

/// What is there and cannot be read is not passed over: who reads it says why.
bool has_file(const std::string& path) { return !io::look_at(path).nothing(); }

double number_of(const io::MetricValue& value) {
  if (const auto* whole = std::get_if<std::int64_t>(&value)) return static_cast<double>(*whole);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return std::numeric_limits<double>::quiet_NaN();
}

/// Puts rows of metrics.jsonl where they belong.
class RowReader {
 public:
  explicit RowReader(RunHistory& run) : run_(run) {}

  void take(const io::MetricRow& row) {
    const double step = value(row, "step");
    if (!std::isfinite(step)) return;
    const auto at = static_cast<std::int64_t>(step);
    if (has(row, "seconds"))
      take_step(at, row);
    else if (has(row, "val_loss"))
      run_.evaluations.push_back({.step = at, .loss = value(row, "val_loss")});
    else if (has(row, "saved") || has(row, "saved_weights"))
      take_save(row);
    else if (has(row, "ranks"))
      take_start(at, row);
  }

 private:
  static bool has(const io::MetricRow& row, std::string_view key) {
    return std::ranges::any_of(row, [&](const auto& cell) { return cell.first == key; });
  }
  static double value(const io::MetricRow& row, std::string_view key) {
    return io::row_number(row, key).value_or(std::numeric_limits<double>::quiet_NaN());
  }

  void take_step(std::int64_t step, const io::MetricRow& row) {
    if (const std::optional<StepRow> work = step_row(row)) run_.work.push_back(*work);
    run_.steps.step.push_back(step);
    run_.steps.time.push_back(value(row, "time"));
    for (const auto& [name, cell] : row) {
      if (name == "step" || name == "time") continue;
      if (const auto* named = std::get_if<io::NamedNumbers>(&cell))
        for (const auto& [part, number] : *named) put(name + "/" + part, number);
      else if (!std::holds_alternative<std::vector<std::int64_t>>(cell))
        put(name, number_of(cell));
    }
    for (auto& [name, column] : run_.steps.columns) column.resize(run_.steps.rows(), std::numeric_limits<double>::quiet_NaN());
  }
  void put(const std::string& name, double number) {
    const auto [at, fresh] = places_.try_emplace(name, run_.steps.columns.size());
    if (fresh) run_.steps.columns.emplace_back(name, std::vector<double>());
    std::vector<double>& column = run_.steps.columns[at->second].second;
    column.resize(run_.steps.rows() - 1, std::numeric_limits<double>::quiet_NaN());
    column.push_back(number);
  }
  void take_save(const io::MetricRow& row) {
    const bool weights = has(row, "saved_weights");
    SaveRow save{
        .step = static_cast<std::int64_t>(value(row, weights ? "saved_weights" : "saved")), .weights = weights, .time = value(row, "time")};
    if (const double s = value(row, "save_seconds"); std::isfinite(s)) save.seconds = s;
    if (const double s = value(row, "save_stall_seconds"); std::isfinite(s)) save.stall = s;
    run_.saves.push_back(save);
  }
  void take_start(std::int64_t step, const io::MetricRow& row) {
    StartRow start{.step = step, .time = value(row, "time"), .ranks = static_cast<std::int64_t>(value(row, "ranks")), .facts = {}};
    for (const auto& [name, cell] : row)
      if (const auto* text = std::get_if<std::string>(&cell)) start.facts.emplace_back(name, *text);
    run_.starts.push_back(std::move(start));
  }

  RunHistory& run_;
  std::unordered_map<std::string, std::size_t> places_;
};

/// N of each folder step-N below this one, rising.
std::vector<std::int64_t> steps_below(const std::string& folder) {
  std::vector<std::int64_t> steps;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    if (const auto step = io::step_of_name(at->path().filename().string())) steps.push_back(*step);
  }
  std::ranges::sort(steps);
  return steps;
}

}  // namespace

const std::vector<double>* StepColumns::find(const std::string& name) const {
  for (const auto& [key, column] : columns)
    if (key == name) return &column;
  return nullptr;
}

std::vector<std::pair<std::string, const std::vector<double>*>> StepColumns::group(const std::string& prefix) const {
  std::vector<std::pair<std::string, const std::vector<double>*>> found;
  for (const auto& [key, column] : columns)
    if (key.starts_with(prefix)) found.emplace_back(key.substr(prefix.size()), &column);
  return found;
}

std::int64_t RunHistory::ranks() const { return starts.empty() ? 0 : starts.back().ranks; }

RunHistory read_run_history(const std::string& folder) {
  const RunFolder at{folder};
  RunHistory run;
  run.folder = folder;
  if (!has_file(at.metrics()) && !has_file(at.deck()))
    fail(ExitCode::usage,
         "{}: it has neither metrics.jsonl nor deck.toml, so it is not the folder of a run. Give the folder in the deck's run.output_dir.",
         folder);
  if (has_file(at.metrics())) {
    RowReader reader(run);
    io::read_rows(at.metrics(), [&](const io::MetricRow& row) { reader.take(row); });
  }
  if (has_file(at.deck())) run.deck = io::read_small_file(at.deck(), ExitCode::usage);
  run.events = io::read_events(at.events());
  run.traced = steps_below(folder + "/trace");
  run.checkpoints = steps_below(at.checkpoints());
  return run;
}

}  // namespace tessera
