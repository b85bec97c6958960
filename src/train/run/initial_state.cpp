#include "train/run/initial_state.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "deck/ramp.hpp"
#include "io/checkpoint/format.hpp"
#include "schedule/build/micro_batches.hpp"
#include "train/run/plans.hpp"
#include "train/save/saving.hpp"

namespace tessera {

void InitialState::foresee(const StartPoint& start) {
  if (initial_ || !start.checkpoint.empty() || deck_.run.init.empty()) return;
  start_together(world_, [&] { initial_.emplace(deck_, world_.rank() == 0); });
}

std::int64_t InitialState::restore(const StartPoint& start, Engine& engine, RunPosition& position) {
  engine.evaluations() = {};
  if (!start.checkpoint.empty()) return load(start, engine, position);
  if (!initial_) return engine.initialise_weights(), 0;
  position.turn_to("the reading of initial weights");
  load_initial_weights(world_, engine, *initial_);
  initial_.reset();
  return 0;
}

std::int64_t InitialState::load(const StartPoint& start, Engine& engine, RunPosition& position) {
  const std::int64_t step = steps_of(start.checkpoint);
  engine.begin_in(phase_after(deck_, step));
  position.turn_to("the loading of a checkpoint");
  load_checkpoint(world_, engine, start.checkpoint);
  if (!is_of_folder(start)) engine.evaluations() = {};  // of another run, whose checkpoints are not here
  info("resumed from {} at step {} of {}", start.checkpoint, step, deck_.run.steps);
  return step;
}

std::int64_t InitialState::steps_of(const std::string& checkpoint) const {
  std::int64_t step = 0;
  start_together(world_, [&] {
    const io::CheckpointReader reader(checkpoint);
    step = reader.meta().step;
    const BatchKeys batch = deck_in_phase(deck_, phase_after(deck_, step)).batch;
    const auto& values = reader.meta().values;
    const auto left_out = std::ranges::find(values, "samples_left_out", &io::CheckpointValue::name);
    const std::int64_t expected = samples_in(deck_, step) + (left_out == values.end() ? 0 : static_cast<std::int64_t>(left_out->number));
    if (const std::int64_t cursor = reader.meta().sample_cursor; cursor != expected)
      warning("{} had seen {} samples in {} steps: this run continues with sample {}, {} a step", reader.folder(), cursor, step, cursor,
              samples_of_step(batch));
  });
  return step;
}

}  // namespace tessera
