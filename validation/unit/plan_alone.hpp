// The plan of a rank that is alone, as tests of engines want it.
#pragma once
#include "schedule/plan/run_plan.hpp"

namespace tessera::test {

/// With `evaluations` micro-batches in the evaluation's program, whatever the deck says.
inline RunPlan plan_alone(const Deck& deck, Purpose purpose = Purpose::training, std::int64_t evaluations = 0, const TextSize& text = {}) {
  BuildRequest request = request_for(deck, Mesh{}, 0, purpose);
  request.evaluation_micro_batches = evaluations;
  request.text = text;
  return plan_run(request);
}

/// Programs of a text alone.
inline RunPlan plan_text(const Deck& deck, const TextSize& text) { return plan_alone(deck, Purpose::generation, 0, text); }

}  // namespace tessera::test
