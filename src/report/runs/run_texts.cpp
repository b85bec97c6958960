// What `tessera runs` prints.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/printable.hpp"
#include "base/types.hpp"
#include "report/runs/figures.hpp"
#include "report/runs/run_summary.hpp"
#include "report/runs/text_table.hpp"

namespace tessera {
namespace {

constexpr double least_silence = 60, silent_steps = 10;

std::string duration(double seconds) {
  if (seconds < 100) return fmt::format("{:.0f} s", seconds);
  if (seconds < 100 * 60) return fmt::format("{:.0f} min", seconds / 60);
  if (seconds < 48 * 3600) return fmt::format("{:.0f} h", seconds / 3600);
  return fmt::format("{:.0f} d", seconds / 86400);
}

std::string figure(const std::optional<double>& value) { return value ? fmt::format("{:.4f}", *value) : "-"; }

std::string percents(double share) { return fmt::format("{:.1f}%", 100 * share); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string checkpoint_text(const NewestCheckpoint& checkpoint) {
  if (!checkpoint.fault.empty() && !checkpoint.verified) return "damaged";
  if (checkpoint.step < 0) return "-";
  return fmt::format("{}{}", checkpoint.step, checkpoint.verified ? "*" : "");
}

std::vector<std::string> row_of(const RunSummary& run, double now) {
  const std::string health = health_of(run, now);
  return {printable_name(run.name),
          word_of(run.state),
          run.steps > 0 ? fmt::format("{}/{}", run.step, run.steps) : fmt::format("{}", run.step),
          figure(run.loss),
          figure(run.val_loss),
          run.tokens_per_second ? human_count(*run.tokens_per_second) : "-",
          run.mfu ? (run.of_peak ? "" : "~") + percents(*run.mfu) : "-",
          checkpoint_text(run.checkpoint),
          run.goodput.starts > 0 ? percents(run.goodput.share()) : "-",
          health};
}

/// What a table has no room for.
std::vector<std::string> notes_of(const RunSummary& run) {
  std::vector<std::string> notes;
  if (run.state == RunState::failed) notes.push_back(first_line(run.reason));
  if (!run.checkpoint.fault.empty()) notes.push_back(run.checkpoint.fault);
  if (!run.warnings.empty()) notes.push_back(run.warnings.back());
  return notes;
}

}  // namespace

std::string health_of(const RunSummary& run, double now) {
  if (!run.checkpoint.fault.empty()) return "checkpoint";
  const double silent = now - run.last_seen, usual = std::max(least_silence, silent_steps * run.seconds.value_or(0));
  if (run.state == RunState::running && run.last_seen > 0 && silent > usual) return "silent " + duration(silent);
  const std::size_t n = run.warnings.size();
  if (n > 0) return fmt::format("{}{} warning{}", n, run.more_warnings ? "+" : "", n == 1 && !run.more_warnings ? "" : "s");
  return "";
}

std::string print_runs(const std::vector<RunSummary>& runs, double now) {
  TextTable table{.header = {"run", "state", "steps", "loss", "val", "tokens/s", "MFU", "saved", "goodput", "health"}, .left = 2, .gap = 1};
  std::string notes;
  for (const RunSummary& run : runs) {
    const auto note = [&](const std::string& text) { notes += fmt::format("{}: {}\n", printable_name(run.name), text); };
    if (!run.fault.empty()) {
      note(run.fault);
      continue;
    }
    table.rows.push_back(row_of(run, now));
    for (const std::string& text : notes_of(run)) note(text);
  }
  std::string text = table.rows.empty() ? "" : table.text();
  if (std::ranges::any_of(runs, [](const RunSummary& run) { return run.checkpoint.verified; })) text += "* every byte verified\n";
  if (std::ranges::any_of(runs, [](const RunSummary& run) { return run.mfu && !run.of_peak; }))
    text += "~ of a product that the run measured at its start. This is not MFU: set run.machine to a profile with a peak\n";
  if (!notes.empty()) text += (text.empty() ? "" : "\n") + notes;
  return text;
}

Json runs_json(const std::vector<RunSummary>& runs, double now) {
  Json all = Json::array();
  for (const RunSummary& run : runs) {
    Json row{{"name", run.name}, {"folder", run.folder}};
    all.push_back(row);
    Json& to = all.back();
    if (!run.fault.empty()) {
      to["fault"] = run.fault;
      continue;
    }
    to["state"] = word_of(run.state);
    if (!run.reason.empty()) to["reason"] = run.reason;
    if (!run.holder.empty()) to["holder"] = run.holder;
    to["step"] = run.step, to["steps"] = run.steps;
    to["loss"] = json_number(run.loss), to["val_loss"] = json_number(run.val_loss);
    to["seconds"] = json_number(run.seconds), to["tokens_per_second"] = json_number(run.tokens_per_second);
    to[run.of_peak ? "mfu" : "of_product"] = json_number(run.mfu);
    to[run.of_peak ? "mfu_causal" : "of_product_causal"] = json_number(run.mfu_causal);
    to["last_seen"] = run.last_seen, to["silent_seconds"] = std::max(0.0, now - run.last_seen);
    to["checkpoint"] = Json{{"step", run.checkpoint.step}, {"verified", run.checkpoint.verified}, {"fault", run.checkpoint.fault}};
    to["warnings"] = Json(run.warnings), to["more_warnings"] = run.more_warnings, to["health"] = health_of(run, now);
    to["goodput"] = run.goodput.starts > 0 ? goodput_json(run.goodput) : Json();
    to["bytes_read"] = run.bytes_read;
  }
  return all;
}

}  // namespace tessera
