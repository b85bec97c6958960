#include "train/observe/progress_log.hpp"

#include <fmt/format.h>

#include "base/clock.hpp"
#include "deck/ramp.hpp"
#include "schedule/build/memory_kind.hpp"
#include "train/observe/loss_scale.hpp"

namespace tessera {
namespace {

std::string memory_text(const Engine& engine) {
  const std::int64_t planned = memory_bytes(engine.room()), used = memory_bytes(engine.used_bytes());
  return fmt::format("{} of {}", human_bytes(static_cast<double>(used)), human_bytes(static_cast<double>(planned)));
}

}  // namespace

ProgressLog::ProgressLog(const RunParts& run)
    : run_(run),
      progress_(run.first_step, run.deck.run.steps, run.deck.run.log_every, memory_text(run.engine), [&deck = run.deck](std::int64_t done) {
        return static_cast<double>(samples_in(deck, deck.run.steps) - samples_in(deck, done));
      }) {}

Verdict ProgressLog::after(const StepEnd& end) {
  progress_.step(end.figures, loss_of_files(run_));
  if (const std::string scale = describe_loss_scale(end.done, end.report, run_.engine.run_values().loss_scale.value);
      run_.deck.precision.scales_loss() && !scale.empty())
    note(scale);
  if (end.report.targets == 0)
    note(fmt::format("step {}: no target of its batch counts in the loss, so weights change only by what the optimizer carries over",
                     end.done));
  if (end.done == run_.first_step + 1) note_first_step();
  return Verdict::go_on;
}

void ProgressLog::finish(std::int64_t) { progress_.finish(); }

void ProgressLog::note_first_step() {
  note(fmt::format("first step done {:.2f} s after launch", now_seconds() - run_.launched));
  if (!run_.overhead) return;
  run_.overhead->count("first step");
  note("besides the plan, on the GPU of rank 0: " + run_.overhead->text());
}

}  // namespace tessera
