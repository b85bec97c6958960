#include "report/runs/run_comparison.hpp"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/check.hpp"
#include "deck/deck.hpp"
#include "deck/ramp.hpp"
#include "deck/schema/value.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "io/metrics/events.hpp"
#include "io/metrics/sink.hpp"
#include "report/runs/figures.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {
namespace {

std::optional<Deck> read_deck(const std::string& path, std::string& fault) {
  try {
    if (io::look_at(path).nothing()) fail(ExitCode::usage, "{} is missing", path);
    const ParsedDeck parsed = parse_stored_deck(io::read_small_file(path, ExitCode::usage), path);
    if (!parsed.faults.empty()) fail(ExitCode::usage, "{} cannot be parsed by this version of Tessera", path);
    return parsed.deck;
  } catch (const Error& error) {
    fault = error.what();
    return {};
  }
}

/// Reads all rows of a run. Tokens are counted by its deck, where there is one, else from the first row on.
class ComparedRows {
 public:
  ComparedRows(ComparedRun& run, const std::optional<Deck>& deck) : run_(run), deck_(deck) {}

  void take(const io::MetricRow& row) {
    const auto step = static_cast<std::int64_t>(io::row_number(row, "step").value_or(0));
    if (const auto loss = io::row_number(row, "val_loss")) run_.validations.push_back({.tokens = tokens_after(step), .loss = *loss});
    if (const std::optional<StepRow> made = step_row(row)) take_step(*made, row);
  }
  void end() {
    run_.seconds = median_of(seconds_), run_.tokens_per_second = median_of(rates_), run_.mfu = median_of(mfu_);
    run_.mfu_causal = median_of(mfu_causal_);
  }

 private:
  double tokens_after(std::int64_t step) const {
    return deck_ ? static_cast<double>(samples_in(*deck_, step) * deck_->batch.sequence_length) : run_.tokens;
  }
  void take_step(const StepRow& made, const io::MetricRow& row) {
    if (run_.losses.empty()) run_.tokens_before = run_.tokens = deck_ ? tokens_after(made.step - 1) : 0;
    const double before = run_.tokens;
    run_.tokens = deck_ ? tokens_after(made.step) : before + std::round(made.work.tokens);
    run_.losses.push_back({.tokens = run_.tokens, .loss = *io::row_number(row, "loss"), .weight = run_.tokens - before});
    const auto keep = [&](std::vector<double>& all, const char* key) {
      if (const auto value = io::row_number(row, key)) all.push_back(*value);
    };
    keep(seconds_, "seconds"), keep(rates_, "tokens_per_second");
    if (const std::optional<Mfu> share = mfu_of_row(row))
      mfu_.push_back(share->full), mfu_causal_.push_back(share->causal), run_.summary.of_peak = share->of_peak;
  }

  ComparedRun& run_;
  const std::optional<Deck>& deck_;
  std::vector<double> seconds_, rates_, mfu_, mfu_causal_;
};

/// After which numbers of tokens a point counts as reached: they are whole.
constexpr double half_a_token = 0.5;

std::optional<double> mean_between(const std::vector<LossPoint>& points, double after, double until) {
  double sum = 0, weight = 0;
  for (const LossPoint& point : points)
    if (point.tokens > after + half_a_token && point.tokens < until + half_a_token)
      sum += point.loss * point.weight, weight += point.weight;
  return weight > 0 ? std::optional(sum / weight) : std::nullopt;
}

std::optional<double> interpolated(const std::vector<LossPoint>& points, double at) {
  for (std::size_t n = 0; n < points.size(); ++n) {
    if (std::abs(points[n].tokens - at) < half_a_token) return points[n].loss;
    if (points[n].tokens < at) continue;
    if (n == 0) return {};
    const double share = (at - points[n - 1].tokens) / (points[n].tokens - points[n - 1].tokens);
    return points[n - 1].loss + share * (points[n].loss - points[n - 1].loss);
  }
  return {};
}

std::vector<DifferingKey> differing_keys(const std::vector<std::optional<Deck>>& decks) {
  std::vector<DifferingKey> differing;
  for (const Key& key : deck_keys()) {
    if (key.name == "run.output_dir") continue;
    DifferingKey row{.key = std::string(key.name), .values = {}};
    std::set<std::string> known;
    for (const std::optional<Deck>& deck : decks) {
      row.values.push_back(deck ? value_text(key, *deck) : "?");
      if (deck) known.insert(row.values.back());
    }
    if (known.size() > 1) differing.push_back(std::move(row));
  }
  return differing;
}

}  // namespace

std::vector<EqualTokens> at_equal_tokens(const std::vector<ComparedRun>& runs, std::int64_t most) {
  double begin = 0, end = runs.empty() ? 0 : runs.front().tokens;
  for (const ComparedRun& run : runs) begin = std::max(begin, run.tokens_before), end = std::min(end, run.tokens);
  if (end <= begin) return {};
  // No more lines than the run with the longest steps has steps there.
  std::int64_t count = most;
  for (const ComparedRun& run : runs)
    count = std::min<std::int64_t>(count, std::ranges::count_if(run.losses, [&](const LossPoint& point) {
                                     return point.tokens > begin + half_a_token && point.tokens < end + half_a_token;
                                   }));
  std::vector<EqualTokens> lines;
  double before = begin;
  for (std::int64_t n = 1; n <= count; ++n) {
    EqualTokens line{
        .tokens = std::round(begin + (end - begin) * static_cast<double>(n) / static_cast<double>(count)), .loss = {}, .validation = {}};
    for (const ComparedRun& run : runs) {
      line.loss.push_back(mean_between(run.losses, before, line.tokens));
      line.validation.push_back(interpolated(run.validations, line.tokens));
    }
    before = line.tokens;
    lines.push_back(std::move(line));
  }
  return lines;
}

RunComparison compare_runs(const std::vector<std::string>& folders, double now) {
  RunComparison comparison;
  std::vector<std::optional<Deck>> decks;
  for (const std::string& folder : folders) {
    ComparedRun run{.summary = summarise_run(folder, {.now = now})};
    if (!run.summary.fault.empty()) fail(ExitCode::usage, "{}: {}", folder, run.summary.fault);
    const RunFolder at{folder};
    const std::optional<Deck>& deck = decks.emplace_back(read_deck(at.deck(), run.deck_fault));
    if (!io::look_at(at.metrics()).nothing()) {
      ComparedRows reader(run, deck);
      io::read_rows(at.metrics(), [&](const io::MetricRow& row) { reader.take(row); });
      reader.end();
    }
    for (const io::Event& event : io::read_events(at.events()))
      if (event.event == "start") run.start = event.fields;
    comparison.runs.push_back(std::move(run));
  }
  comparison.keys = differing_keys(decks);
  comparison.same_data = std::ranges::none_of(comparison.keys, [](const DifferingKey& key) {
    return key.key == "data.train" || key.key == "data.validation" || key.key == "data.weights" || key.key == "data.tokenizer";
  });
  comparison.lines = at_equal_tokens(comparison.runs);
  return comparison;
}

}  // namespace tessera
