// A reference beside the model, on memory that holds NaN where nobody has written: training has the same bits as without it, and the
// reference's loss is that of the model as it began, on each batch.
#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "schedule/plan/run_plan.hpp"
#include "train/engine/engine.hpp"

namespace tessera::reference_engine_test {
namespace {

struct Steps {
  std::vector<double> losses, norms, reference;
  std::vector<std::vector<float>> weights;
};

/// `moves`: false leaves the weights as they are.
Steps three_steps(std::vector<std::string> keys, bool moves = true) {
  keys.insert(keys.end(), {"batch.global=4", "run.reproducible=true"});
  const Deck deck = test::tiny_deck(keys);
  Engine engine(plan_run(request_for(deck, Mesh{}, 0, Purpose::training)), {.poison = true});
  engine.initialise_weights();
  test::Random random(5);
  Steps steps;
  for (int step = 0; step < 3; ++step) {
    for (std::int64_t m = 0; m < engine.accumulation(); ++m) {
      for (auto& token : engine.tokens(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
      for (auto& token : engine.targets(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
    }
    const StepReport report = engine.step({.rehearsal = !moves});
    steps.losses.push_back(report.loss), steps.norms.push_back(report.grad_norm);
    if (const std::optional<double> loss = engine.loss_of("reference")) steps.reference.push_back(*loss);
  }
  engine.settle();
  if (deck.zero.offload_param.device == OffloadDevice::none)
    for (const Parameter& p : engine.layout().model_table()) steps.weights.push_back(engine.weight_of(p.name));
  return steps;
}

void demand(std::vector<std::string> keys) {
  const std::string of = keys.empty() ? "" : keys.front();
  const Steps alone = three_steps(keys), still = three_steps(keys, false);
  keys.emplace_back("reference.model=start");
  const Steps beside = three_steps(keys);
  EXPECT_EQ(beside.losses, alone.losses) << of;
  EXPECT_EQ(beside.norms, alone.norms) << of;
  EXPECT_EQ(beside.weights, alone.weights) << of;
  EXPECT_EQ(beside.reference, still.losses) << of;
  EXPECT_NE(beside.reference.back(), beside.losses.back()) << of << ": the model has moved";
}

TEST(Reference, StaysAtTheStartAndMovesNothing) {
  for (const char* type : {"precision.compute=fp32", "precision.compute=bf16"}) {
    demand({type});
    demand({type, "model.experts=4", "model.router_balance=bias", "model.router_aux_loss=0.01"});
    demand({type, "model.tied=true", "zero.stage=3", "zero.offload_param.device=host", "zero.offload_optimizer.device=host"});
    demand({type, "lora.rank=2"});
    demand({type, "model.freeze=[\"layers.0.*\"]"});
  }
}

}  // namespace
}  // namespace tessera::reference_engine_test
