// Steps of models of which a part is frozen, under every recompute there is and on memory that holds NaN where nobody has written: the same
// bits. The texts' own test is model/frozen_recompute_test.cpp; this one asks the kernels, the plan's bytes and the choice of `auto`.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "../model/random_models.hpp"
#include "memory/runtime.hpp"
#include "schedule/plan/run_plan.hpp"
#include "train/engine/engine.hpp"
#include "validation/unit/sample.hpp"

namespace tessera::frozen_engine_test {
namespace {

struct Steps {
  std::vector<double> losses, norms;
  std::vector<std::vector<float>> weights;
  friend bool operator==(const Steps&, const Steps&) = default;
};

Steps two_steps(const Deck& deck, const RecomputeChoice& choice) {
  BuildRequest request = request_for(deck, Mesh{}, 0, Purpose::training);
  request.recompute = {choice};
  Engine engine(plan_run(request), {.poison = true});
  engine.initialise_weights();
  test::Random random(5);
  Steps steps;
  for (int step = 0; step < 2; ++step) {
    for (std::int64_t m = 0; m < engine.accumulation(); ++m) {
      for (auto& token : engine.tokens(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
      for (auto& token : engine.targets(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
      for (auto& number : engine.token_numbers(m)) number = random(0, 1000);  // which features of a token are dropped
    }
    const StepReport report = engine.step();
    steps.losses.push_back(report.loss), steps.norms.push_back(report.grad_norm);
  }
  for (const Parameter& p : engine.layout().table) steps.weights.push_back(engine.weight_of(p.name));
  return steps;
}

/// Sets of values that are dropped in one layer, and others in the next; last, all of both with one stream between.
std::vector<RecomputeChoice> some_choices(const Deck& deck, test::Sample& sample) {
  const std::vector<std::string> names = value_names(model_segments(model_shape(deck)));
  const auto dropped = [&](std::size_t bits) {
    RecomputeLevel level;
    for (std::size_t i = 0; i < names.size(); ++i)
      if (bits >> i % 20 & 1) level.dropped.insert(names[i]);
    return level;
  };
  std::vector<RecomputeChoice> choices;
  const std::vector<std::size_t> sets = sample.of(std::size_t{1} << std::min<std::size_t>(names.size(), 20), 6, 64);
  for (std::size_t i = 0; i < sets.size(); ++i)
    choices.push_back({.early = dropped(sets[i]), .late = dropped(sets[(i + 2) % sets.size()]), .layers = 1, .keep = {}});
  choices.push_back({.early = {}, .late = {{names.begin(), names.end()}, 2}, .layers = 0, .keep = {}});
  return choices;
}

void demand_the_same_bits(const std::string& frozen, std::vector<std::string> keys, test::Sample& sample) {
  keys.insert(keys.end(), {"batch.global=4", frozen});
  const Deck deck = test::tiny_deck(keys);
  const Steps expected = two_steps(deck, {});
  for (const double norm : expected.norms) ASSERT_TRUE(std::isfinite(norm) && norm > 0) << frozen << ": of the reference";
  for (const RecomputeChoice& choice : some_choices(deck, sample))
    EXPECT_EQ(two_steps(deck, choice), expected) << frozen << " " << keys.front() << ", dropped: " << describe(choice.early) << "; "
                                                 << describe(choice.late) << ", with " << sample.describe();
}

TEST(FrozenSteps, OfAnyPartHaveTheBitsOfNoRecompute) {
  const std::vector<std::string> sets = {"\"layers.?.mlp.*\"",
                                         "\"layers.?.mlp.w_*\"",
                                         "\"layers.?.mlp.norm\"",
                                         "\"layers.?.mlp.w_gate\", \"layers.?.mlp.w_up\"",
                                         "\"layers.?.attention.*\"",
                                         "\"layers.?.attention.w*\"",
                                         "\"layers.?.attention.wo\"",
                                         "\"layers.?.attention.norm\"",
                                         "\"embedding.*\", \"layers.0.*\"",
                                         "\"*.norm\"",
                                         "\"layers.1.*\", \"head.*\""};
  test::Sample sample;
  for (const std::size_t s : sample.of(sets.size(), 5))
    for (const char* dtype : {"fp32", "bf16"})
      demand_the_same_bits("model.freeze=[" + sets[s] + "]", {std::string("precision.compute=") + dtype}, sample);
}

TEST(FrozenSteps, OfAdaptersHaveTheBitsOfNoRecompute) {
  const std::vector<std::string> sets = {"\"wq\", \"wv\"", "\"w_down\"", "\"w_gate\"", "\"wo\", \"w_up\"", "\"all-linear\""};
  test::Sample sample;
  for (const std::size_t s : sample.of(sets.size(), 3))
    for (const char* dropout : {"lora.dropout=0.0", "lora.dropout=0.3"})
      demand_the_same_bits("lora.targets=[" + sets[s] + "]", {"lora.rank=2", dropout}, sample);
  const std::vector<std::string> experts = {"lora.rank=2", "model.experts=2", "model.shared_ff_width=8"};
  demand_the_same_bits("lora.targets=[\"all-linear\"]", experts, sample);
  std::vector<std::string> dropped = experts;
  dropped.insert(dropped.begin(), "lora.dropout=0.3");
  demand_the_same_bits("lora.targets=[\"shared.*\", \"wq\"]", dropped, sample);
}

}  // namespace
}  // namespace tessera::frozen_engine_test
