#include "train/observe/ledger.hpp"

#include "base/clock.hpp"
#include "base/current_error.hpp"
#include "base/log.hpp"
#include "base/version.hpp"
#include "deck/environment.hpp"
#include "io/files/path_state.hpp"
#include "io/metrics/sink.hpp"
#include "schedule/build/describe_mesh.hpp"
#include "train/engine/program_identity.hpp"

namespace tessera {
namespace {

/// What metrics.jsonl holds as a start goes on from a step.
struct RowsBefore {
  StepWork kept, lost;
  double last = 0;  ///< time of the last row
};

RowsBefore rows_before(const std::string& path, std::int64_t first_step) {
  RowsBefore rows;
  if (io::look_at(path).nothing()) return rows;
  io::read_rows(path, [&](const io::MetricRow& row) {
    for (const auto& [key, value] : row)
      if (const auto* time = std::get_if<double>(&value); time && key == "time") rows.last = std::max(rows.last, *time);
    if (const std::optional<StepRow> step = step_row(row)) (step->step <= first_step ? rows.kept : rows.lost) += step->work;
  });
  return rows;
}

/// The scheduler's number of the job; empty outside of one.
std::string job_of_scheduler() {
  for (const char* name : {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "JOB_ID"})
    if (const auto job = environment(name)) return *job;
  return "";
}

Json planned_bytes(const TierBytes& bytes) {
  Json json = Json::object();
  for (int tier = 0; tier < tier_count; ++tier)
    if (const std::int64_t n = bytes[static_cast<std::size_t>(tier)]; n > 0) json[name_of(static_cast<Tier>(tier))] = n;
  return json;
}

Json environment_of(const RunParts& run) {
  Json json{{"ranks", run.world.map_of_ranks()}, {"device", word_of(run.deck.run.device)}};
  for (const IdentityField& field : program_identity()) json[field.name] = field.value;
  return json;
}

std::string layout_of(const RunParts& run) {
  const Mesh& mesh = run.engine.planned().request.mesh;
  return fmt::format("{}{}{}, zero.stage {}", describe(mesh), describe_tensor(run.deck, mesh), describe_context(run.deck, mesh),
                     run.deck.zero.stage);
}

}  // namespace

void Ledger::begin(const RunParts& run) {
  claim_ = run.claim, launched_ = run.launched, done_ = run.first_step;
  claim_->renew();
  log_.emplace(run.folder.events());
  for (const io::Event& event : io::read_events(run.folder.events())) account_.add(event);
  const RowsBefore rows = rows_before(run.folder.metrics(), run.first_step);
  Json fields{{"launched", unix_seconds() - (now_seconds() - run.launched)},
              {"ranks", run.world.ranks()},
              {"layout", layout_of(run)},
              {"host", run.world.place().host},
              {"job", job_of_scheduler()},
              {"version", version()},
              {"resumed_from", run.first_step},
              {"steps", run.deck.run.steps},
              {"went_back", run.went_back},
              {"mfu_of", run.yardstick.is_peak() ? "peak" : "product"},
              {"lost_steps", rows.lost.steps},
              {"lost_seconds", rows.lost.seconds},
              {"kept", work_json(rows.kept)},
              {"last_row", rows.last},
              {"plan", planned_bytes(run.engine.room())},
              {"environment", environment_of(run)},
              {"deck", print_deck(run.deck)}};
  write(run.first_step, "start", std::move(fields), true);
}

void Ledger::write(std::int64_t done, const char* event, Json fields, bool with_sums) {
  if (!log_) return;
  claim_->renew();
  io::Event written{.time = unix_seconds(), .step = done, .event = event, .fields = std::move(fields)};
  account_.add(written);
  if (with_sums) written.fields["goodput"] = goodput_json(account_.at(written.time));
  log_->write(written);
}

void Ledger::training() { write(done_, "training", {{"seconds", now_seconds() - launched_}}); }

Verdict Ledger::after(const StepEnd& end) {
  const StepFigures& f = end.figures;
  done_ = f.step;
  account_.add({.step = f.step,
                .work = work_of_step(f.seconds, f.tokens_per_second, f.mfu.full, f.mfu.causal, end.stall ? end.stall->excess() : 0)});
  return Verdict::go_on;
}

Goodput Ledger::saved(std::int64_t done, const Saved& save) {
  write(save.step, save.what == SaveOf::state ? "save" : "save_weights",
        {{"done", done}, {"seconds", save.seconds}, {"stall_seconds", save.stalled}, {"in_steps", save.in_steps}}, true);
  return now();
}

void Ledger::evaluated(std::int64_t done, double seconds, double loss) {
  write(done, "evaluation", {{"seconds", seconds}, {"val_loss", loss}});
}

void Ledger::ended_early(std::int64_t done, const std::string& why) { write(done, "early_stop", {{"text", why}}); }

void Ledger::warned(std::int64_t done, const std::string& text) { write(done, "warning", {{"text", text}}); }

void Ledger::entered_phase(std::int64_t done, std::size_t phase, double seconds, const std::string& text) {
  write(done, "phase", {{"phase", phase + 1}, {"seconds", seconds}, {"text", text}});
}

void Ledger::end(ExitCode code, const std::string& failure) {
  const std::string reason = code == ExitCode::ok ? "finished" : code == ExitCode::interrupted ? "signal" : "failed: " + failure;
  try {
    write(done_, "end", {{"reason", reason}, {"exit", static_cast<int>(code)}}, true);
  } catch (const std::exception&) {
    // Of a run that ends already by what matters more, or whose steps and saves stand.
    warning("the end of the run could not be written to events.jsonl: {}", current_error().what());
  }
  log_.reset();
}

Goodput Ledger::now() const { return account_.at(unix_seconds()); }

}  // namespace tessera
