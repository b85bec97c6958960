// What `tessera runs compare` prints.
#include <fmt/format.h>

#include <cmath>

#include "base/types.hpp"
#include "memory/tier.hpp"
#include "report/runs/figures.hpp"
#include "report/runs/run_comparison.hpp"
#include "report/runs/text_table.hpp"

namespace tessera {
namespace {

/// "A", "B", .. "Z", "A1", ..
std::string letter_of(std::size_t n) {
  const char letter = static_cast<char>('A' + n % 26);
  return n < 26 ? fmt::format("{}", letter) : fmt::format("{}{}", letter, n / 26);
}

std::string number_text(const std::optional<double>& value, const char* format, double scale = 1) {
  return value ? fmt::format(fmt::runtime(format), scale * *value) : "-";
}

std::string field_text(const Json& start, std::string_view key) {
  const Json* found = start.find(key);
  if (!found) return "-";
  return found->is_string() ? found->text() : found->dump();
}

std::string planned(const Json& start, std::string_view tier) {
  const Json* plan = start.find("plan");
  const Json* bytes = plan && plan->is_object() ? plan->find(tier) : nullptr;
  return bytes && bytes->is_number() ? human_bytes(bytes->get<double>()) : "-";
}

class FigureRows {
 public:
  FigureRows(const RunComparison& comparison, std::string what) : comparison_(comparison) {
    table_.header.push_back(std::move(what));
    for (std::size_t n = 0; n < comparison.runs.size(); ++n) table_.header.push_back(letter_of(n));
  }
  /// Where no run has it, there is no row.
  template <class F>
  void add(const std::string& name, const F& text_of_run) {
    std::vector<std::string> row{name};
    bool known = false;
    for (const ComparedRun& run : comparison_.runs) {
      row.push_back(text_of_run(run));
      known = known || row.back() != "-";
    }
    if (known) table_.rows.push_back(std::move(row));
  }
  void add(std::vector<std::string> row) { table_.rows.push_back(std::move(row)); }
  std::string text() const { return fmt::format("\n{}", table_.text()); }

 private:
  const RunComparison& comparison_;
  TextTable table_;
};

std::string figures(const RunComparison& comparison) {
  FigureRows rows(comparison, "figures");
  rows.add("step, s", [](const ComparedRun& run) { return number_text(run.seconds, "{:.4g}"); });
  rows.add("tokens/s", [](const ComparedRun& run) { return run.tokens_per_second ? human_count(*run.tokens_per_second) : "-"; });
  for (const bool of_peak : {true, false})
    rows.add(mfu_name(of_peak), [=](const ComparedRun& run) {
      return run.summary.of_peak == of_peak ? number_text(run.mfu, "{:.1f}%", 100) : std::string("-");
    });
  const auto of_goodput = [&](const std::string& name, const auto& text) {
    rows.add(name, [&](const ComparedRun& run) { return run.summary.goodput.starts > 0 ? text(run.summary.goodput) : "-"; });
  };
  of_goodput("goodput", [](const Goodput& g) { return fmt::format("{:.1f}%", 100 * g.share()); });
  of_goodput("wall, s", [](const Goodput& g) { return fmt::format("{:.1f}", g.wall); });
  of_goodput("tokens/s of the wall", [](const Goodput& g) { return human_count(g.tokens_per_second()); });
  for (const bool of_peak : {true, false})
    rows.add(fmt::format("{}, of the wall time", mfu_name(of_peak)), [=](const ComparedRun& run) {
      const Goodput& g = run.summary.goodput;
      return g.starts > 0 && run.summary.of_peak == of_peak ? fmt::format("{:.1f}%", 100 * g.mfu()) : std::string("-");
    });
  rows.add("ranks", [](const ComparedRun& run) { return field_text(run.start, "ranks"); });
  for (int tier = 0; tier < tier_count; ++tier)
    rows.add(fmt::format("planned, {}", name_of(static_cast<Tier>(tier))),
             [&](const ComparedRun& run) { return planned(run.start, name_of(static_cast<Tier>(tier))); });
  return rows.text();
}

std::string equal_tokens(const RunComparison& comparison) {
  if (comparison.lines.empty()) return "\nThere is no number of tokens for which all of these runs have steps.\n";
  TextTable table{.header = {"tokens"}, .left = 0};
  for (std::size_t n = 0; n < comparison.runs.size(); ++n) table.header.push_back(fmt::format("loss {}", letter_of(n)));
  bool validated = false;
  for (const EqualTokens& line : comparison.lines)
    for (const auto& value : line.validation) validated = validated || value;
  for (std::size_t n = 0; validated && n < comparison.runs.size(); ++n) table.header.push_back(fmt::format("val {}", letter_of(n)));
  for (const EqualTokens& line : comparison.lines) {
    std::vector<std::string> row{human_count(line.tokens)};
    for (const auto& value : line.loss) row.push_back(number_text(value, "{:.4f}"));
    for (const auto& value : line.validation)
      if (validated) row.push_back(number_text(value, "{:.4f}"));
    table.rows.push_back(std::move(row));
  }
  return fmt::format("\n{}Loss: mean over the tokens since the line above.{}{}\n", table.text(),
                     validated ? " Validation: interpolated between the nearest evaluations." : "",
                     comparison.same_data ? "" : " The runs have other data (data.*): their losses are of other tokens.");
}

Json numbers(const std::vector<std::optional<double>>& values) {
  Json all = Json::array();
  for (const auto& value : values) all.push_back(json_number(value));
  return all;
}

}  // namespace

std::string print_comparison(const RunComparison& comparison) {
  TextTable heads{.header = {"run", "folder", "state", "steps", "tokens"}, .left = 3};
  std::string faults;
  for (std::size_t n = 0; n < comparison.runs.size(); ++n) {
    const ComparedRun& run = comparison.runs[n];
    heads.rows.push_back({letter_of(n), run.summary.folder, word_of(run.summary.state),
                          fmt::format("{}/{}", run.summary.step, run.summary.steps), human_count(run.tokens)});
    if (!run.deck_fault.empty()) faults += fmt::format("{}: {}\n", letter_of(n), run.deck_fault);
  }
  std::string text = heads.text() + faults;
  FigureRows keys(comparison, "key");
  for (const DifferingKey& key : comparison.keys) {
    std::vector<std::string> row{key.key};
    row.insert(row.end(), key.values.begin(), key.values.end());
    keys.add(std::move(row));
  }
  text += comparison.keys.empty() ? "\nTheir decks are equal, except for run.output_dir.\n" : keys.text();
  return text + equal_tokens(comparison) + figures(comparison);
}

Json comparison_json(const RunComparison& comparison, double now) {
  std::vector<RunSummary> summaries;
  for (const ComparedRun& run : comparison.runs) summaries.push_back(run.summary);
  Json runs = runs_json(summaries, now), keys = Json::object(), lines = Json::array();
  for (std::size_t n = 0; n < comparison.runs.size(); ++n) {
    const ComparedRun& run = comparison.runs[n];
    // Of all its steps, where the summary has those of the last.
    Json& to = runs[n];
    to["seconds"] = json_number(run.seconds), to["tokens_per_second"] = json_number(run.tokens_per_second);
    to[run.summary.of_peak ? "mfu" : "of_product"] = json_number(run.mfu);
    to[run.summary.of_peak ? "mfu_causal" : "of_product_causal"] = json_number(run.mfu_causal);
    to["tokens"] = run.tokens;
    for (const char* key : {"ranks", "layout", "plan"})
      if (const Json* found = run.start.find(key)) to[key] = *found;
    if (!run.deck_fault.empty()) to["deck_fault"] = run.deck_fault;
  }
  for (const DifferingKey& key : comparison.keys) keys[key.key] = Json(key.values);
  for (const EqualTokens& line : comparison.lines)
    lines.push_back({{"tokens", line.tokens}, {"loss", numbers(line.loss)}, {"val_loss", numbers(line.validation)}});
  return {{"runs", runs}, {"keys", keys}, {"same_data", comparison.same_data}, {"at_equal_tokens", lines}};
}

}  // namespace tessera
