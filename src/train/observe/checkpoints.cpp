#include "train/observe/checkpoints.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "train/observe/ledger.hpp"

namespace tessera {

Checkpoints::Checkpoints(const RunParts& run, MetricsLog& metrics, ProgressLog& progress, Warnings& warnings)
    : run_(run),
      metrics_(metrics),
      progress_(progress),
      warnings_(warnings),
      done_(run.first_step),
      saver_(run.world, run.engine, run.deck, run.folder, run.claim, run.checkpoint, run.records,
             [this](const Saved& saved) { stands(saved); }) {}

void Checkpoints::catch_up() {
  const std::vector<SaveOf> missing = saver_.missing(run_.first_step);
  if (missing.empty()) return;
  if (missing.front() == SaveOf::state) run_.proof.save_begins(run_.first_step);
  saver_.save(run_.first_step, false, missing);
}

Verdict Checkpoints::after(const StepEnd& end) {
  done_ = end.done;
  run_.position.turn_to("the saving of a checkpoint");
  saver_.look();
  if (end.last && run_.claim) run_.claim->say_leaving();
  // A resume that is not proven yet must not take the place of what it went on from.
  const std::vector<SaveOf> due = saver_.due(end.done, end.last, !run_.proof.open());
  if (EvaluationRecord& record = run_.engine.evaluations();
      run_.deck.checkpoint.keep_best && record.best_step == end.done && std::ranges::find(due, SaveOf::state) == due.end()) {
    record.lose(end.done);
    progress_.note(
        fmt::format("step {} is not kept as the best: no state is saved while a resume is compared (checkpoint.verify_resume)", end.done));
  }
  if (due.empty()) return Verdict::go_on;
  if (due.front() == SaveOf::state) run_.proof.save_begins(end.done);
  saver_.save(end.done, end.last, due);
  return Verdict::go_on;
}

void Checkpoints::stands(const Saved& saved) {
  progress_.note(saved.line);
  const bool state = saved.what == SaveOf::state;
  const Goodput goodput = run_.ledger.saved(done_, saved);
  metrics_.record({{"step", done_},
                   {state ? "saved" : "saved_weights", saved.step},
                   {"save_seconds", saved.seconds},
                   {"save_stall_seconds", saved.stalled},
                   {"goodput", goodput.share()},
                   {"goodput_seconds", seconds_of_parts(goodput)}});
  if (!state) return;
  warnings_.saved(saved.step, saved.seconds);
  run_.proof.save_stands(saved.step);
}

}  // namespace tessera
