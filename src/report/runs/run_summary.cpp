#include "report/runs/run_summary.hpp"

#include <algorithm>
#include <filesystem>
#include <ranges>

#include "base/check.hpp"
#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/file_tail.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "io/metrics/events.hpp"
#include "io/metrics/sink.hpp"
#include "report/runs/figures.hpp"
#include "train/folder/run_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// So much is read first, and eight times as much where what is looked for lies further back, up to a bound.
constexpr std::int64_t first_rows = 8 << 10, first_events = 16 << 10, most_bytes = 2 << 20;

/// The end of a file from which `enough` has what it looks for, or the most that is read.
template <class T>
std::vector<T> read_end(const std::string& path, std::int64_t first, std::int64_t& bytes_read, bool& cut,
                        std::vector<T> (*parse)(std::string_view, bool), const auto& enough) {
  for (std::int64_t bytes = first;; bytes *= 8) {
    const io::FileTail tail = io::read_tail(path, bytes);
    bytes_read += static_cast<std::int64_t>(tail.text.size());
    std::vector<T> found = parse(tail.text, tail.cut);
    cut = tail.cut;
    if (!tail.cut || bytes >= most_bytes || enough(found)) return found;
  }
}

bool is_step(const io::MetricRow& row) { return step_row(row).has_value(); }

bool is(const io::Event& event, std::string_view name) { return event.event == name; }

void tell_rows(RunSummary& run, const std::vector<io::MetricRow>& rows) {
  std::vector<double> seconds, rates, mfu, mfu_causal;
  for (const io::MetricRow& row : rows) {
    run.last_seen = std::max(run.last_seen, io::row_number(row, "time").value_or(0));
    run.step = static_cast<std::int64_t>(io::row_number(row, "step").value_or(static_cast<double>(run.step)));
    if (const auto loss = io::row_number(row, "val_loss")) run.val_loss = loss;
    if (!io::row_number(row, "seconds")) continue;
    run.loss = io::row_number(row, "loss");
    const auto keep = [&](std::vector<double>& all, const char* name) {
      if (const auto value = io::row_number(row, name)) all.push_back(*value);
    };
    const auto keep_mfu = [&](const io::MetricRow& of) {
      if (const std::optional<Mfu> share = mfu_of_row(of))
        mfu.push_back(share->full), mfu_causal.push_back(share->causal), run.of_peak = share->of_peak;
    };
    keep(seconds, "seconds"), keep(rates, "tokens_per_second"), keep_mfu(row);
  }
  run.seconds = median_of(seconds), run.tokens_per_second = median_of(rates), run.mfu = median_of(mfu),
  run.mfu_causal = median_of(mfu_causal);
}

void tell_events(RunSummary& run, const std::vector<io::Event>& events) {
  run.warnings = warnings_of_last_start(events);
  for (const io::Event& event : events) {
    run.last_seen = std::max(run.last_seen, event.time);
    if (is(event, "start")) {
      run.more_warnings = false;
      if (const auto steps = io::field_number(event.fields, "steps")) run.steps = static_cast<std::int64_t>(*steps);
    }
    if (is(event, "evaluation"))
      if (const auto loss = io::field_number(event.fields, "val_loss")) run.val_loss = loss;
  }
}

RunState state_now(RunSummary& run, const std::vector<io::Event>& events) {
  const bool ended = events.empty() || is(events.back(), "end");
  const std::optional<std::string> holder = holder_of(run.folder);
  if (holder && !holder->empty()) {
    run.holder = *holder;
    return ended ? RunState::starting : RunState::running;
  }
  if (events.empty()) return run.steps > 0 && run.step >= run.steps ? RunState::finished : RunState::unknown;
  if (!ended) return holder ? RunState::killed : RunState::unknown;
  run.reason = events.back().fields.value("reason", "");
  if (run.reason == "finished") return RunState::finished;
  return run.reason == "signal" ? RunState::interrupted : RunState::failed;
}

/// Of a run whose events do not tell it.
std::int64_t steps_of_deck(const std::string& path) {
  if (io::look_at(path).nothing()) return 0;
  const ParsedDeck parsed = parse_stored_deck(io::read_small_file(path, ExitCode::usage), path);
  return parsed.faults.empty() ? parsed.deck.run.steps : 0;
}

NewestCheckpoint checkpoint_that_verifies(const std::string& root) {
  const io::CheckpointSurvey survey = io::survey_checkpoints(root);
  const io::Head head = io::find_head(survey);
  NewestCheckpoint newest;
  newest.fault = head.fault;
  if (!head.entry && head.fault.empty()) return newest;
  for (const io::CheckpointEntry& entry : io::by_descent(survey, head.entry ? head.entry->lineage : io::Lineage(1))) try {
      io::CheckpointReader(entry.path).verify({});
      newest.step = entry.step, newest.verified = true;
      return newest;
    } catch (const Error& error) {
      newest.fault += (newest.fault.empty() ? "" : " ") + std::string(error.what());
    }
  return newest;
}

/// Follows `latest` alone, and reads heads of files alone.
NewestCheckpoint newest_checkpoint(const std::string& root) {
  NewestCheckpoint newest;
  const std::string latest = root + "/latest";
  try {
    if (io::look_at_link(latest).nothing()) {
      const io::Head head = io::find_head(io::survey_checkpoints(root));
      newest.fault = head.fault;
      if (!head.entry) return newest;
      newest.step = head.entry->step;
      io::CheckpointReader(head.entry->path).require_shards();
    } else {
      std::error_code ignored;  // a copy of a run may have a folder there
      newest.step = io::step_of_name(fs::read_symlink(latest, ignored).filename().string()).value_or(-1);
      const io::CheckpointReader reader(latest);
      newest.step = reader.meta().step;
      reader.require_shards();
    }
  } catch (const Error& error) {
    newest.fault = error.what();
  }
  return newest;
}

/// Whether a start has gone on from this checkpoint: then it has read all of it, and compared checksums.
bool was_gone_on_from(std::int64_t step, const std::vector<io::Event>& events) {
  bool loads = false, loaded = false;
  for (const io::Event& event : events) {
    if (is(event, "save") && event.step == step) loads = loaded = false;
    if (is(event, "start")) loads = step > 0 && event.step == step;
    if (is(event, "training") && loads) loaded = true;
  }
  return loaded;
}

void tell(RunSummary& run, const SummaryOptions& options) {
  const RunFolder at{run.folder};
  bool rows_cut = false, events_cut = false;
  const std::vector<io::MetricRow> rows =
      read_end<io::MetricRow>(at.metrics(), first_rows, run.bytes_read, rows_cut, io::rows_of,
                              [](const auto& found) { return std::ranges::count_if(found, is_step) > 1; });
  const std::vector<io::Event> events =
      read_end<io::Event>(at.events(), first_events, run.bytes_read, events_cut, io::events_of, [](const auto& found) {
        return std::ranges::any_of(found, [](const io::Event& event) { return event.fields.contains("goodput"); });
      });
  run.more_warnings = events_cut;
  tell_rows(run, rows);
  tell_events(run, events);
  if (run.steps == 0) run.steps = steps_of_deck(at.deck());
  run.state = state_now(run, events);
  std::vector<StepRow> steps;
  for (const io::MetricRow& row : rows)
    if (const std::optional<StepRow> step = step_row(row)) steps.push_back(*step);
  run.goodput = goodput(events, steps, run.state == RunState::running ? options.now : 0);
  run.checkpoint = options.verify ? checkpoint_that_verifies(at.checkpoints()) : newest_checkpoint(at.checkpoints());
  if (!options.verify && run.checkpoint.fault.empty()) run.checkpoint.verified = was_gone_on_from(run.checkpoint.step, events);
}

}  // namespace

std::vector<std::string> warnings_of_last_start(std::span<const io::Event> events) {
  std::vector<std::string> warnings;
  for (const io::Event& event : events) {
    if (is(event, "start")) warnings.clear();
    if (is(event, "warning") || is(event, "stall")) warnings.push_back(event.fields.value("text", ""));
  }
  return warnings;
}

const char* word_of(RunState state) {
  constexpr const char* words[] = {"starting", "running", "finished", "interrupted", "failed", "killed", "ended"};
  return words[static_cast<std::size_t>(state)];
}

bool is_run(const std::string& folder) {
  const RunFolder at{folder};
  return io::look_at(at.metrics()).exists() || io::look_at(at.events()).exists() ||
         (io::look_at(at.deck()).exists() && io::look_at(at.checkpoints()).exists());
}

RunSummary summarise_run(const std::string& folder, const SummaryOptions& options) {
  RunSummary run;
  run.folder = folder, run.name = fs::path(folder + "/").lexically_normal().parent_path().filename().string();
  try {
    if (is_run(folder))
      tell(run, options);
    else
      run.fault = "no run: it has no metrics.jsonl, no events.jsonl, and no deck.toml with checkpoints";
  } catch (const std::exception& error) {
    run.fault = error.what();
  }
  return run;
}

std::vector<RunSummary> summarise_runs(const std::string& folder, const SummaryOptions& options) {
  if (const io::PathState there = io::look_at(folder); there.kind != io::PathState::Kind::folder)
    fail(ExitCode::usage, "{}: {}. Name a run's folder, or one that holds runs.", folder,
         there.nothing()   ? "there is no such folder"
         : there.unknown() ? "it cannot be read: " + there.reason
                           : "it is not a folder");
  if (is_run(folder)) return {summarise_run(folder, options)};
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error))
    if (io::look_at(at->path().string()).kind == io::PathState::Kind::folder) names.push_back(at->path().filename().string());
  if (error) fail(ExitCode::usage, "{}: cannot list the folder: {}.", folder, error.message());
  std::ranges::sort(names);
  std::vector<RunSummary> runs;
  for (const std::string& name : names) runs.push_back(summarise_run((fs::path(folder) / name).string(), options));
  return runs;
}

}  // namespace tessera
