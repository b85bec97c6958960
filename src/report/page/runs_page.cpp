#include "report/page/runs_page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "deck/ramp.hpp"
#include "report/page/charts.hpp"
#include "report/page/html.hpp"
#include "report/page/page.hpp"
#include "report/page/reduce.hpp"
#include "report/page/sections.hpp"

namespace tessera {
namespace {

constexpr double none = std::numeric_limits<double>::quiet_NaN();

struct Overlay {
  const char *id, *title, *unit, *column;
  bool logarithmic = false, clipped = false;
};
constexpr Overlay overlays[] = {{"loss", "Loss", "nats a token", "loss"},
                                {"validation", "Validation loss", "nats a token", ""},
                                {"speed", "Throughput", "tokens/s", "tokens_per_second"},
                                {"mfu", "MFU", "", "mfu"},
                                {"product", "Share of the measured product", "", "of_product"},
                                {"seconds", "Time of a step", "s", "seconds", false, true},
                                {"norm", "Norm of the gradient", "", "grad_norm", true},
                                {"rate", "Learning rate", "", "lr"}};

/// A run's numbers of one figure, at places of an axis.
struct RunCurve {
  std::vector<double> at, value;
};

/// Where a step of a run lies on an axis.
using PlaceOf = std::function<double(const RunHistory&, std::size_t row, std::int64_t step)>;
struct RunAxis {
  const char *name, *text;
  PlaceOf place;
};

double hours_of(const RunHistory& run, std::size_t row) { return (run.steps.time[row] - run.steps.time.front()) / 3600; }

/// The last row up to a step.
std::size_t row_of(const RunHistory& run, std::int64_t step) {
  const auto at = std::ranges::upper_bound(run.steps.step, step);
  return static_cast<std::size_t>(std::max<std::ptrdiff_t>(at - run.steps.step.begin() - 1, 0));
}

RunCurve curve_of(const RunHistory& run, const Overlay& overlay, const PlaceOf& place, std::size_t most) {
  RunCurve curve;
  if (run.steps.rows() == 0) return curve;
  if (*overlay.column == '\0') {
    for (const std::size_t end : bucket_ends(run.evaluations.size(), most)) {
      const EvaluationRow& row = run.evaluations[end - 1];
      curve.at.push_back(place(run, row_of(run, row.step), row.step));
      curve.value.push_back(row.loss);
    }
    return curve;
  }
  const std::vector<double>* column = run.steps.find(overlay.column);
  if (!column) return curve;
  const std::vector<std::size_t> ends = bucket_ends(column->size(), most);
  curve.value = reduce_column(*column, ends, overlay.logarithmic).mean;
  for (const std::size_t end : ends) curve.at.push_back(place(run, end - 1, run.steps.step[end - 1]));
  return curve;
}

bool has_number(const RunCurve& curve) {
  return std::ranges::any_of(curve.value, [](double v) { return std::isfinite(v); });
}

/// Tokens of the deck up to a step, padding included; nothing where the run's deck cannot be read.
PlaceOf place_on_tokens(const std::vector<RunHistory>& runs) {
  std::vector<std::optional<Deck>> decks;
  for (const RunHistory& run : runs) {
    const ParsedDeck parsed = run.deck.empty() ? ParsedDeck() : parse_stored_deck(run.deck, "deck.toml");
    decks.push_back(run.deck.empty() || !parsed.faults.empty() ? std::optional<Deck>() : parsed.deck);
  }
  return [decks, first = runs.data()](const RunHistory& run, std::size_t, std::int64_t step) {
    const std::optional<Deck>& deck = decks[static_cast<std::size_t>(&run - first)];
    return deck ? static_cast<double>(samples_in(*deck, step) * deck->batch.sequence_length) : none;
  };
}

std::vector<RunAxis> axes_of(const std::vector<RunHistory>& runs) {
  std::vector<RunAxis> axes{{"step", "steps", [](const RunHistory&, std::size_t, std::int64_t step) { return static_cast<double>(step); }},
                            {"tokens", "tokens", place_on_tokens(runs)},
                            {"time", "hours", [](const RunHistory& run, std::size_t row, std::int64_t) { return hours_of(run, row); }}};
  const auto known = [&](const RunHistory& run) {
    return run.steps.rows() == 0 || std::isfinite(axes[1].place(run, 0, run.steps.step[0]));
  };
  if (!std::ranges::all_of(runs, known)) axes.erase(axes.begin() + 1);
  return axes;
}

std::string column_name(std::size_t run, const Overlay& overlay) { return fmt::format("{}/{}", run, overlay.id); }

/// All places of all curves, and of each curve its numbers there.
std::string axis_numbers(const std::vector<RunHistory>& runs, const RunAxis& axis, const std::vector<const Overlay*>& shown) {
  const std::size_t most = std::min(most_points / runs.size(), most_numbers / (3 * (1 + runs.size() * runs.size() * shown.size())));
  std::vector<double> at;
  std::vector<std::pair<std::string, RunCurve>> curves;
  for (const Overlay* overlay : shown)
    for (std::size_t r = 0; r < runs.size(); ++r) {
      curves.emplace_back(column_name(r, *overlay), curve_of(runs[r], *overlay, axis.place, std::max<std::size_t>(most, 50)));
      at.insert(at.end(), curves.back().second.at.begin(), curves.back().second.at.end());
    }
  std::ranges::sort(at);
  at.erase(std::unique(at.begin(), at.end()), at.end());
  std::string text = fmt::format("{{\"at\":{},\"columns\":{{", number_list(at, 9));
  for (std::size_t c = 0; c < curves.size(); ++c) {
    const RunCurve& curve = curves[c].second;
    std::vector<double> value(at.size(), none);
    for (std::size_t i = 0; i < curve.at.size(); ++i)
      value[static_cast<std::size_t>(std::ranges::lower_bound(at, curve.at[i]) - at.begin())] = curve.value[i];
    text += fmt::format("{}{}:{{\"mean\":{}}}", c > 0 ? "," : "", Json(curves[c].first).dump(), number_list(value));
  }
  return text + "}}";
}

std::vector<const Overlay*> shown_of(const std::vector<RunHistory>& runs, const PlaceOf& place) {
  std::vector<const Overlay*> shown;
  for (const Overlay& overlay : overlays)
    if (std::ranges::any_of(runs, [&](const RunHistory& run) { return has_number(curve_of(run, overlay, place, most_points)); }))
      shown.push_back(&overlay);
  return shown;
}

/// Titles of runs; where two are the same, their folders.
std::vector<std::string> names_of(const std::vector<RunHistory>& runs) {
  std::vector<std::string> names;
  for (const RunHistory& run : runs) names.push_back(title_of_run(run.folder));
  const std::vector<std::string> titles = names;
  for (std::size_t r = 0; r < names.size(); ++r)
    if (std::ranges::count(titles, names[r]) > 1) names[r] = runs[r].folder;
  for (std::size_t r = 0; r < names.size(); ++r) names[r] = fmt::format("{}: {}", static_cast<char>('A' + r % 26), names[r]);
  return names;
}

std::vector<Chart> charts_of_runs(const std::vector<RunHistory>& runs, const std::vector<const Overlay*>& shown, const PlaceOf& place) {
  const std::vector<std::string> names = names_of(runs);
  std::vector<Chart> charts;
  for (const Overlay* overlay : shown) {
    Chart chart{.id = overlay->id,
                .title = overlay->title,
                .unit = overlay->unit,
                .series = {},
                .logarithmic = overlay->logarithmic,
                .clipped = overlay->clipped};
    for (std::size_t r = 0; r < runs.size(); ++r)
      if (has_number(curve_of(runs[r], *overlay, place, most_points))) chart.series.emplace_back(column_name(r, *overlay), names[r]);
    charts.push_back(std::move(chart));
  }
  return charts;
}

}  // namespace

RunsPage::RunsPage(std::vector<RunHistory> runs, RunComparison comparison, double now)
    : runs_(std::move(runs)), comparison_(std::move(comparison)), now_(now) {}

Json RunsPage::data() const {
  const std::vector<RunAxis> axes = axes_of(runs_);
  const std::vector<const Overlay*> shown = shown_of(runs_, axes.front().place);
  Json out{{"comparison", comparison_json(comparison_, now_)},
           {"charts", charts_json(charts_of_runs(runs_, shown, axes.front().place))},
           {"marks", Json::array()},
           {"step", Json::object()}};
  Json tables = Json::object();
  for (const RunAxis& axis : axes) tables[axis.name] = Json::parse(axis_numbers(runs_, axis, shown));
  out["numbers"] = Json{{"axes", tables}};
  return out;
}

std::string RunsPage::html(int reload_seconds) const {
  const std::vector<RunAxis> axes = axes_of(runs_);
  std::string figures, folders;
  for (const Chart& chart : charts_of_runs(runs_, shown_of(runs_, axes.front().place), axes.front().place))
    figures += chart_figure(chart, nullptr);
  for (const std::string& name : names_of(runs_)) folders += (folders.empty() ? "" : " · ") + tessera::html(name);
  std::vector<std::pair<std::string, std::string>> choices;
  for (const RunAxis& axis : axes) choices.emplace_back(axis.name, axis.text);
  const std::string title = fmt::format("{} runs", runs_.size());
  std::string body = fmt::format("<header><h1>{}</h1>\n<p class=\"facts\">{}{}</p></header>\n", title, folders,
                                 reload_seconds > 0 ? fmt::format(" · live: this page reloads every {} s", reload_seconds) : "");
  body += "<section id=\"curves\"><h2>Curves</h2>\n" + charts_box(figures, choices) + "</section>\n";
  body += "<section id=\"comparison\"><h2>Side by side</h2>\n<pre>" + tessera::html(print_comparison(comparison_)) + "</pre></section>\n";
  return html_document(title, body, data(), reload_seconds);
}

}  // namespace tessera
