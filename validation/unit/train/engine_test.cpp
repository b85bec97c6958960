// One rank's model as a whole: its gradient against differences of its loss, its memory against its plan, its weights and its steps.
#include "train/engine/engine.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <numeric>

#include "../model/random_models.hpp"
#include "../plan_alone.hpp"
#include "../scratch.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "memory/runtime.hpp"
#include "train/engine/fit.hpp"

namespace tessera::engine_test {
namespace {

using Weights = std::map<std::string, std::vector<float>>;

Weights random_weights(const Deck& deck, std::uint32_t seed) {
  test::Random random(seed);
  Weights weights;
  for (const Parameter& p : parameter_table(deck.model))
    for (std::int64_t i = 0; i < p.shape.elements(); ++i) {
      const double x = std::sqrt(12.0) * (random.unit() - 0.5);
      weights[p.name].push_back(static_cast<float>(p.init == Init::ones ? 1 + 0.2 * x : p.init == Init::zeros ? 0.2 * x : 0.25 * x));
    }
  return weights;
}

void set(Engine& engine, const Weights& weights) {
  engine.set_weights([&](const Parameter& p, std::int64_t first, std::span<float> out) {
    std::copy_n(weights.at(p.name).begin() + first, out.size(), out.begin());
  });
}

/// A pair in each sequence: the chosen text is the first half, the rejected one the second. The first targets of each do not count.
void fill_pairs(Engine& engine, const Deck& deck, std::int64_t m, test::Random& random) {
  const auto half = static_cast<std::size_t>(deck.batch.sequence_length / 2);
  std::ranges::fill(engine.input<std::int32_t>("sequence_counts", m), 0);
  for (std::size_t i = 0; i < engine.targets(m).size(); ++i) {
    const std::size_t text = i / half, place = i % half, prompt = text % 2 == 0 ? 1 : 2;
    const bool counts = place >= prompt && place + 1 < half;
    engine.document_starts(m)[i] = static_cast<std::int32_t>(text % 2 * half);
    engine.row_weights(m)[i] = counts ? 1 : 0;
    engine.input<std::int32_t>("sequences", m)[i] = counts ? static_cast<std::int32_t>(text) : -1;
    engine.input<std::int32_t>("sequence_counts", m)[text] += counts;
  }
  for (double& logps : engine.input<double>("reference_logps", m)) logps = -8 - 8 * random.unit();
}

void fill_batch(Engine& engine, const Deck& deck, std::int64_t micro_batches, std::uint32_t seed) {
  test::Random random(seed);
  for (std::int64_t m = 0; m < micro_batches; ++m) {
    for (auto& token : engine.tokens(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
    for (auto& token : engine.targets(m)) token = static_cast<std::int32_t>(random(0, deck.model.vocab - 1));
    for (auto& number : engine.token_numbers(m)) number = random(0, 1 << 20);  // which features of a token are dropped
    if (deck.preference.on()) fill_pairs(engine, deck, m, random);
  }
}

struct Model {
  std::string name;
  std::vector<std::string> overrides;
};
void PrintTo(const Model& m, std::ostream* out) { *out << m.name; }

Model of_pairs(const std::string& name, const std::string& objective, const std::string& reference = "file",
               const std::vector<std::string>& more = {}) {
  Model model{name,
              {"preference.objective=" + objective, "preference.reference=" + reference, "preference.beta=0.5", "data.document_mask=true"}};
  if (reference == "file") model.overrides.emplace_back("preference.reference_file=reference.h5");
  model.overrides.insert(model.overrides.end(), more.begin(), more.end());
  return model;
}

class GradientOf : public testing::TestWithParam<Model> {};

TEST_P(GradientOf, TheLossAlongDirections) {
  auto overrides = GetParam().overrides;
  overrides.insert(overrides.end(), {"batch.global=4", "optimizer.gradient_clipping=0.5"});
  const Deck deck = test::tiny_deck(overrides);
  Engine engine(test::plan_alone(deck, Purpose::training, 2));
  const Weights weights = random_weights(deck, 1);
  set(engine, weights);
  fill_batch(engine, deck, 2, 2);
  const StepReport report = engine.step();
  Weights gradient;
  double norm = 0;
  for (const Parameter& p : engine.layout().table) {
    if (p.frozen) continue;
    gradient[p.name] = engine.gradient_of(p.name);
    for (float g : gradient[p.name]) norm += static_cast<double>(g) * g;
  }
  norm = std::sqrt(norm);
  EXPECT_NEAR(report.grad_norm / norm, 1, 1e-6) << "the norm that is reported is not that of the gradient";
  const std::int64_t tokens = 4 * deck.batch.sequence_length;
  auto loss_at = [&](const Weights& direction, double e) {
    Weights moved = weights;
    for (const auto& [name, d] : direction)
      for (std::size_t i = 0; i < d.size(); ++i) moved[name][i] += static_cast<float>(e * d[i]);
    set(engine, moved);
    return engine.evaluate({.tokens = tokens}).loss;
  };
  EXPECT_NEAR(loss_at({}, 0), report.loss, 1e-6 * report.loss) << "evaluation and training see another loss";
  // Central differences of fourth order: the loss in fp32 carries noise of some 1e-7, the step's own error is of order e^4.
  auto check = [&](const std::string& what, const Weights& direction) {
    double length = 0, product = 0;
    for (const auto& [name, d] : direction)
      for (std::size_t i = 0; i < d.size(); ++i)
        length += static_cast<double>(d[i]) * d[i], product += static_cast<double>(d[i]) * gradient.at(name)[i];
    length = std::sqrt(length);
    const double e = 0.02 / length;
    const double slope =
        (8 * (loss_at(direction, e) - loss_at(direction, -e)) - (loss_at(direction, 2 * e) - loss_at(direction, -2 * e))) / (12 * e);
    const double scale = std::abs(product) / length;
    EXPECT_NEAR(slope / length, product / length, 2e-3 * scale + 3e-5) << what;
  };
  // Along each tensor's own gradient: a wrong part of it would lengthen it without steepening the slope.
  for (const auto& [name, g] : gradient) check(name, {{name, g}});
  // Along random directions of all weights at once, leaned on the gradient so that the slope is not noise.
  for (std::uint32_t seed = 10; seed < 13; ++seed) {
    Weights direction = random_weights(deck, seed);
    std::erase_if(direction, [&](const auto& of) { return !gradient.contains(of.first); });
    double length = 0;
    for (auto& [name, d] : direction)
      for (float x : d) length += static_cast<double>(x) * x;
    for (auto& [name, d] : direction)
      for (std::size_t i = 0; i < d.size(); ++i) d[i] = static_cast<float>(d[i] / std::sqrt(length) + gradient.at(name)[i] / norm);
    check(fmt::format("random direction {}", seed), direction);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, GradientOf,
    testing::Values(Model{"untied", {}}, Model{"tied", {"model.tied=true"}}, Model{"qk_norm", {"model.qk_norm=true"}},
                    Model{"qkv_bias", {"model.qkv_bias=true"}}, Model{"lora", {"lora.rank=2", "lora.alpha=1"}},
                    Model{"lora_dropout", {"lora.rank=2", "lora.alpha=1", "lora.dropout=0.3"}},
                    Model{"lora_dropout_shared",
                          {"lora.rank=2", "lora.alpha=1", "lora.dropout=0.3", "lora.targets=[\"wq\", \"wo\", \"shared.*\"]",
                           "model.experts=2", "model.shared_ff_width=16", "model.router_aux_loss=0", "model.router_z_loss=0"}},
                    Model{"both", {"model.qk_norm=true", "model.qkv_bias=true", "model.tied=true"}},
                    Model{"chunks", {"kernels.loss_chunk=5"}},
                    Model{"odd", {"model.width=23", "model.ff_width=29", "model.head_dim=6", "batch.sequence_length=7"}},
                    Model{"one_kv_head", {"model.kv_heads=1"}}, Model{"packed", {"kernels.pack_weights=true"}},
                    Model{"packed_tied", {"kernels.pack_weights=true", "model.tied=true"}},
                    // Both experts take every token: a choice that changes would be a step in the loss.
                    Model{"experts", {"model.experts=2", "model.shared_ff_width=20", "model.normalize_top_k=false"}},
                    Model{"sigmoids",
                          {"model.experts=2", "model.shared_ff_width=20", "model.shared_gate=false", "model.router_scores=sigmoid",
                           "model.router_scale=2.5", "model.dense_layers=1"}},
                    Model{"experts_in_turns",
                          {"model.experts=2", "model.layers=3", "model.pattern=DE",
                           R"(model.kinds=[{ name = "D", experts = false }, { name = "E" }])"}},
                    Model{"reproducible", {"run.reproducible=true"}}, of_pairs("dpo", "dpo"), of_pairs("robust", "robust"),
                    of_pairs("ipo", "ipo"), of_pairs("sigmoid_norm", "sigmoid_norm"), of_pairs("apo_zero", "apo_zero"),
                    of_pairs("apo_down", "apo_down"), of_pairs("simpo", "simpo", "none"), of_pairs("cpo", "cpo", "none"),
                    of_pairs("sum", R"(["dpo", "sft"])", "file", {"preference.weights=[0.7, 1.5]"}),
                    of_pairs("cdpo", "dpo", "file", {"preference.label_smoothing=0.2", "kernels.loss_chunk=5"}),
                    of_pairs("dpo_adapters", "dpo", "adapter", {"lora.rank=2", "lora.alpha=1"}),
                    of_pairs("dpo_softcap", "dpo", "file", {"model.logit_softcap=3", "model.head_bias=true"})),
    [](const auto& info) { return info.param.name; });

/// Loss and gradient of the mean over targets, of documents that lie where they are told to.
struct PlacedDocuments {
  struct At {
    std::size_t row, first;
  };
  double loss = 0;
  Weights gradient;
  PlacedDocuments(const Deck& deck, const std::vector<std::vector<std::int32_t>>& documents, const std::vector<At>& places) {
    Engine engine(test::plan_alone(deck, Purpose::training, 0));
    set(engine, random_weights(deck, 1));
    const auto T = static_cast<std::size_t>(deck.batch.sequence_length), B = static_cast<std::size_t>(deck.batch.micro);
    for (std::int64_t m = 0; m < deck.batch.global / deck.batch.micro; ++m) {
      std::ranges::fill(engine.tokens(m), 0), std::ranges::fill(engine.row_weights(m), 0);
      for (std::size_t i = 0; i < engine.document_starts(m).size(); ++i)  // until one lies there, each place is alone
        engine.document_starts(m)[i] = static_cast<std::int32_t>(i % T);
    }
    std::int64_t targets = 0;
    for (std::size_t d = 0; d < documents.size(); ++d) {
      const auto m = static_cast<std::int64_t>(places[d].row / B);
      for (std::size_t i = 0; i + 1 < documents[d].size(); ++i, ++targets) {
        const std::size_t at = places[d].row % B * T + places[d].first + i;
        engine.tokens(m)[at] = documents[d][i], engine.targets(m)[at] = documents[d][i + 1], engine.row_weights(m)[at] = 1;
        if (!engine.document_starts(m).empty()) engine.document_starts(m)[at] = static_cast<std::int32_t>(places[d].first);
      }
    }
    const StepReport report = engine.step();
    EXPECT_EQ(report.targets, targets);
    loss = report.loss;
    for (const Parameter& p : engine.layout().table) gradient[p.name] = engine.gradient_of(p.name);
  }
};

// Packed into two sequences, documents give what each gives in a sequence of its own, where nothing stands before it and no mask is needed.
TEST(Engine, PackedDocumentsAreDocumentsOneByOne) {
  const std::vector<std::vector<std::int32_t>> documents = {{1, 5, 2, 9},     {3, 3, 8, 1, 7, 2}, {4, 6},
                                                            {11, 2, 5, 5, 1}, {9, 8, 7},          {2, 12, 4, 1}};
  for (const char* model : {"model.qk_norm=false", "model.qk_norm=true"}) {
    const auto deck = [&](const char* mask, int rows) {
      return test::tiny_deck({model, "batch.sequence_length=12", "batch.micro=2", fmt::format("batch.global={}", rows), mask});
    };
    const PlacedDocuments packed(deck("data.document_mask=true", 2), documents, {{0, 0}, {0, 3}, {0, 8}, {1, 0}, {1, 4}, {1, 6}});
    const PlacedDocuments alone(deck("data.document_mask=false", 6), documents, {{0, 0}, {1, 0}, {2, 0}, {3, 0}, {4, 0}, {5, 0}});
    EXPECT_NEAR(packed.loss / alone.loss, 1, 1e-6) << model;
    for (const auto& [name, g] : alone.gradient) {
      double apart = 0, norm = 0;
      for (std::size_t i = 0; i < g.size(); ++i) {
        apart += std::pow(static_cast<double>(packed.gradient.at(name)[i]) - g[i], 2);
        norm += static_cast<double>(g[i]) * g[i];
      }
      EXPECT_LT(std::sqrt(apart), 2e-6 * std::sqrt(norm) + 1e-9) << name << ", " << model;
    }
  }
}

// With the mask, what is one document has the bits that it has without.
TEST(Engine, ASequenceOfOneDocumentHasTheBitsOfNoMask) {
  const std::vector<std::vector<std::int32_t>> documents = {{1, 5, 2, 9, 3, 3, 8, 1, 7, 2, 4, 6, 1},
                                                            {11, 2, 5, 5, 1, 9, 8, 7, 2, 12, 4, 1, 1}};
  const auto made = [&](const char* mask) {
    return PlacedDocuments(test::tiny_deck({"batch.sequence_length=12", "batch.micro=2", "batch.global=2", mask}), documents,
                           {{0, 0}, {1, 0}});
  };
  const PlacedDocuments with = made("data.document_mask=true"), without = made("data.document_mask=false");
  EXPECT_EQ(with.loss, without.loss);
  EXPECT_EQ(with.gradient, without.gradient);
}

// What a run of phases does between two of them: state and values of the run stay, whatever lay beside them.
TEST(Engine, GoesOnInAnotherPhase) {
  for (const std::string type : {"fp32", "bf16"}) {
    std::vector<RunPlan> plans;
    const Deck large = test::tiny_deck({"batch.global=4", "precision.compute=" + type}),
               small = test::tiny_deck({"batch.global=2", "batch.sequence_length=4", "precision.compute=" + type});
    for (const Deck& deck : {small, large}) plans.push_back(test::plan_alone(deck, Purpose::training, 0));
    const std::int64_t most = memory_bytes(plans[1].memory.bytes);
    ASSERT_LT(memory_bytes(plans[0].memory.bytes), most);
    Engine engine(std::move(plans)), alone(test::plan_alone(large, Purpose::training, 0));
    EXPECT_EQ(memory_bytes(engine.room()), most);
    EXPECT_EQ(engine.used_bytes(), engine.room());
    const auto weights_of = [&](const Engine& of) {
      Weights weights;
      for (const Parameter& p : parameter_table(large.model)) weights[p.name] = of.weight_of(p.name);
      return weights;
    };
    engine.initialise_weights();
    fill_batch(engine, small, engine.accumulation(), 1);
    engine.step();
    const Weights after_one = weights_of(engine);
    engine.enter(1);
    EXPECT_EQ(weights_of(engine), after_one);
    EXPECT_EQ(engine.run_values().applied_updates, 1);
    EXPECT_EQ(engine.run_values().sample_cursor, 2);
    // Its first step is that of an engine which never had another plan.
    set(engine, random_weights(large, 2)), set(alone, random_weights(large, 2));
    for (Engine* one : {&engine, &alone}) fill_batch(*one, large, one->accumulation(), 3), one->step();
    EXPECT_EQ(weights_of(engine), weights_of(alone));
    engine.enter(0);
    EXPECT_EQ(weights_of(engine), weights_of(alone));
    EXPECT_EQ(engine.run_values().sample_cursor, 4);
  }
}

TEST(Engine, UsesThePlannedBytesWithExperts) {
  for (const char* capacity : {"\"dropless\"", "0.5"})
    for (const char* stage : {"0", "3"}) {
      const Deck deck = test::tiny_deck({"model.experts=4", "model.shared_ff_width=8", fmt::format("experts.capacity_factor={}", capacity),
                                         fmt::format("zero.stage={}", stage)});
      const Engine engine(test::plan_alone(deck, Purpose::training, 3));
      EXPECT_EQ(engine.used_bytes(), engine.plan().bytes);
    }
}

// A cycled momentum and its beta2 are those of the update: a cycle between equal ones is an optimizer that has them, bias corrections
// included.
TEST(Engine, TakesTheBetasOfItsSchedule) {
  const auto trained = [](const std::vector<std::string>& more) {
    std::vector<std::string> keys = {"batch.global=4", "learning_rate.schedule=one_cycle", "learning_rate.one_cycle.min_lr=1e-3",
                                     "learning_rate.one_cycle.first_step_size=2"};
    keys.insert(keys.end(), more.begin(), more.end());
    const Deck deck = test::tiny_deck(keys);
    Engine engine(test::plan_alone(deck, Purpose::training, 0));
    engine.initialise_weights();
    for (int step = 0; step < 3; ++step) {
      fill_batch(engine, deck, 2, static_cast<std::uint32_t>(step));
      engine.step();
    }
    return engine.weight_of("layers.0.attention.wq");
  };
  const std::string cycled = "learning_rate.one_cycle.", none = cycled + "cycle_momentum=false";
  const auto equal = trained({cycled + "min_mom=0.7", cycled + "max_mom=0.7"});
  EXPECT_EQ(equal, trained({none, "optimizer.beta1=0.7", "optimizer.beta2=0.99"}));
  EXPECT_NE(equal, trained({none, "optimizer.beta1=0.7", "optimizer.beta2=0.98"}));
  EXPECT_NE(equal, trained({cycled + "min_mom=0.6", cycled + "max_mom=0.7"}));
}

TEST(Engine, SaysWhatRoutersDid) {
  const Deck deck = test::tiny_deck({"model.experts=4", "experts.capacity_factor=0.5", "batch.global=4"});
  Engine engine(test::plan_alone(deck, Purpose::training, 0));
  engine.initialise_weights();
  fill_batch(engine, deck, 2, 2);
  for (int step = 0; step < 2; ++step) {
    engine.step();
    const RouterFigures f = engine.router_figures().value();
    const std::int64_t choices = 2 * 2 * 4 * deck.batch.sequence_length;  // layers, a token's, sequences
    EXPECT_EQ(std::accumulate(f.load.begin(), f.load.end(), std::int64_t{0}), choices) << "of one step, not of all";
    EXPECT_GE(f.balance, 1 - 1e-3);
    EXPECT_GE(f.most_loaded, 1);
    EXPECT_LE(f.most_loaded, 2) << "a token goes to an expert once, and to 2 of 4";
    EXPECT_GE(2 * f.dropped, choices) << "there is room for half";
    EXPECT_EQ(f.dropped_share, static_cast<double>(f.dropped) / static_cast<double>(choices));
  }
  EXPECT_FALSE(Engine(test::plan_alone(test::tiny_deck({"batch.global=4"}), Purpose::training, 0)).router_figures());
}

// After a step each bias has moved by the rate where its expert had more or less than the mean, and not after one whose loss is no number.
TEST(Engine, BiasesMoveByTheLoadsOfAStepThatCounts) {
  for (const char* type : {"fp32", "bf16"})
    for (const char* offload : {"none", "host"}) {
      const Deck deck = test::tiny_deck({"model.experts=4", "model.router_balance=bias", "model.router_bias_rate=0.25", "batch.global=4",
                                         "model.layers=1", fmt::format("precision.compute={}", type),
                                         fmt::format("zero.stage={}", offload == std::string("none") ? 0 : 2),
                                         fmt::format("zero.offload_optimizer.device={}", offload)});
      Engine engine(test::plan_alone(deck, Purpose::training, 1));
      engine.initialise_weights();
      fill_batch(engine, deck, 2, 2);
      std::vector<float> expected(4, 0.0f);
      for (int step = 0; step < 3; ++step) {
        engine.step();
        const std::vector<std::int64_t> load = engine.router_figures().value().load;
        const std::int64_t all = std::accumulate(load.begin(), load.end(), std::int64_t{0});
        for (std::size_t e = 0; e < 4; ++e) expected[e] += 4 * load[e] < all ? 0.25f : 4 * load[e] > all ? -0.25f : 0.0f;
        EXPECT_EQ(engine.weight_of("layers.0.moe.router_bias"), expected) << type << ", step " << step;
      }
      EXPECT_NE(expected, std::vector<float>(4, 0.0f));
      engine.settle();
      Weights weights = random_weights(deck, 1);
      weights["layers.0.attention.wo"][5] = std::numeric_limits<float>::quiet_NaN();
      set(engine, weights);
      fill_batch(engine, deck, 2, 3);
      const std::vector<float> before = engine.weight_of("layers.0.moe.router_bias");
      EXPECT_EQ(engine.step().not_finite, 1);
      EXPECT_EQ(engine.weight_of("layers.0.moe.router_bias"), before) << type << " " << offload;
    }
}

TEST(Engine, UsesThePlannedBytes) {
  for (const char* type : {"fp32", "bf16"})
    for (const auto& [training, offload, parameters] : {std::tuple(true, "none", "none"), std::tuple(true, "host", "none"),
                                                        std::tuple(true, "host", "host"), std::tuple(false, "none", "none")}) {
      const Deck deck = test::tiny_deck({fmt::format("precision.compute={}", type), "zero.stage=3",
                                         fmt::format("zero.offload_optimizer.device={}", offload),
                                         fmt::format("zero.offload_param.device={}", parameters)});
      const Purpose purpose = training ? Purpose::training : Purpose::evaluation;
      const Engine engine(test::plan_alone(deck, purpose, 3));
      EXPECT_EQ(engine.used_bytes(), engine.plan().bytes);
      EXPECT_EQ(engine.used_bytes(), test::plan_alone(deck, purpose, 3).memory.bytes) << "what a plan says before the run";
    }
}

TEST(Engine, InitialWeightsDependOnSeedNameAndElementAlone) {
  auto weight = [](const std::vector<std::string>& overrides, const std::string& name) {
    Engine engine(test::plan_alone(test::tiny_deck(overrides)));
    engine.initialise_weights();
    return engine.weight_of(name);
  };
  const auto wq = weight({}, "layers.1.attention.wq");
  EXPECT_EQ(weight({"model.layers=3", "model.init_std=0.3"}, "layers.1.attention.wq"), wq) << "another tensor's size moved it";
  EXPECT_NE(weight({"run.seed=2"}, "layers.1.attention.wq"), wq);
  EXPECT_NE(weight({}, "layers.0.attention.wq"), wq);
  double sum = 0, squares = 0;
  for (float x : wq) sum += x, squares += static_cast<double>(x) * x;
  const auto n = static_cast<double>(wq.size());
  EXPECT_NEAR(sum / n, 0, 0.04);
  EXPECT_NEAR(std::sqrt(squares / n), 0.3, 0.03);
  for (float x : weight({}, "layers.0.mlp.norm")) EXPECT_EQ(x, 1.0f);
  for (float x : weight({"model.qkv_bias=true"}, "layers.0.attention.bk")) EXPECT_EQ(x, 0.0f);
}

TEST(Engine, StepsAreTheSameInBothLaneModesAndForAnySplitOfTheBatch) {
  // The global batch as 1, 2 or 4 micro-batches of one sequence each is another order of sums: fp32 agrees to rounding.
  auto losses = [](const std::vector<std::string>& overrides, LaneMode lanes) {
    auto all = overrides;
    all.push_back("batch.global=4");
    const Deck deck = test::tiny_deck(all);
    Engine engine(test::plan_alone(deck), {.lanes = lanes});
    engine.initialise_weights();
    std::vector<double> result;
    for (std::int64_t step = 0; step < 4; ++step) {
      for (std::int64_t row = 0; row < 4; ++row)
        for (std::int64_t t = 0; t < deck.batch.sequence_length; ++t) {
          const std::int64_t B = deck.batch.micro, T = deck.batch.sequence_length;
          engine.tokens(row / B)[static_cast<std::size_t>(row % B * T + t)] = static_cast<std::int32_t>((step * 7 + row * 13 + t * t) % 61);
          engine.targets(row / B)[static_cast<std::size_t>(row % B * T + t)] =
              static_cast<std::int32_t>((step * 7 + row * 13 + (t + 1) * (t + 1)) % 61);
        }
      result.push_back(engine.step().loss);
    }
    return result;
  };
  const auto whole = losses({"batch.micro=4"}, LaneMode::inline_order);
  EXPECT_EQ(losses({"batch.micro=4"}, LaneMode::threads), whole);
  for (const char* micro : {"batch.micro=2", "batch.micro=1"}) {
    const auto split = losses({micro}, LaneMode::inline_order);
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_NEAR(split[i] / whole[i], 1, 1e-5) << micro << " step " << i;
  }
}

TEST(Engine, ANanLeavesTheWeightsAsTheyWere) {
  for (const char* offload : {"none", "host"}) {
    const Deck deck = test::tiny_deck({"batch.global=4", "zero.stage=2", fmt::format("zero.offload_optimizer.device={}", offload)});
    Engine engine(test::plan_alone(deck));
    Weights weights = random_weights(deck, 1);
    weights["layers.1.mlp.w_up"][5] = std::numeric_limits<float>::quiet_NaN();
    set(engine, weights);
    fill_batch(engine, deck, 2, 3);
    const StepReport report = engine.step();
    EXPECT_EQ(report.not_finite, 1);
    for (const char* name : {"layers.0.attention.wq", "head.weight", "embedding.weight"})
      EXPECT_EQ(engine.weight_of(name), weights[name]) << name;
  }
}

// A step of an offloaded optimizer leaves its update to the next one; who wants to see the weights makes it at once.
TEST(Engine, AnUpdateThatIsLeftGivesTheSameBitsAsOneThatIsMade) {
  for (const char* type : {"fp32", "bf16"})
    for (const char* stage : {"zero.stage=1", "zero.stage=2", "zero.stage=3"})
      for (const char* parameters : {"none", "host"}) {
        if (parameters != std::string("none") && stage != std::string("zero.stage=3")) continue;
        const auto run = [&](const char* offload, int settled_every) {
          const Deck deck =
              test::tiny_deck({"batch.global=4", "run.reproducible=true", stage, fmt::format("precision.compute={}", type),
                               fmt::format("zero.offload_optimizer.device={}", offload),
                               fmt::format("zero.offload_param.device={}", offload == std::string("none") ? "none" : parameters)});
          Engine engine(test::plan_alone(deck));
          set(engine, random_weights(deck, 1));
          std::vector<double> losses;
          for (int step = 0; step < 5; ++step) {
            fill_batch(engine, deck, 2, static_cast<std::uint32_t>(step + 1));
            const StepReport report = engine.step();
            losses.insert(losses.end(), {report.loss, report.grad_norm});
            if (settled_every > 0 && step % settled_every == 0) engine.settle();
          }
          engine.settle();
          const io::ShardSlice master = engine.state().checkpoint_slices().front();
          io::PageBuffer own;
          for (float w : master.data.values(0, master.data.elements(), own)) losses.push_back(w);
          return losses;
        };
        const std::vector<double> late = run("host", 0);
        EXPECT_EQ(late, run("host", 1)) << type << " " << stage << " " << parameters;
        EXPECT_EQ(late, run("host", 3)) << type << " " << stage << " " << parameters;
        EXPECT_EQ(late, run("none", 0)) << type << " " << stage << " " << parameters;
      }
}

// What an optimizer keeps is 12 bytes a parameter, and its gradient 4: none of it is left where kernels work, whose largest buffers pass.
TEST(Engine, AnOffloadedOptimizerLeavesTheMemoryOfTheKernels) {
  for (const char* stage : {"zero.stage=1", "zero.stage=2", "zero.stage=3"}) {
    const auto plan = [&](const std::string& offload) {
      return test::plan_alone(
          test::tiny_deck({"model.width=64", "precision.compute=bf16", stage, "zero.offload_optimizer.device=" + offload}));
    };
    const RunPlan here = plan("none"), below = plan("host");
    std::int64_t elements = 0;
    for (const Unit& unit : below.layout().units) elements += unit.elements;
    const auto held = [](const RunPlan& p, Tier tier) { return p.memory.persistent[static_cast<std::size_t>(tier)]; };
    const bool whole = std::string(stage) == "zero.stage=1";  // whose sums stay until the step's last micro-batch
    const std::int64_t slack = 64 * plan_alignment;
    EXPECT_NEAR(static_cast<double>(held(here, Tier::host) - held(below, Tier::device)), static_cast<double>((whole ? 12 : 16) * elements),
                static_cast<double>(slack))
        << stage;
    EXPECT_NEAR(static_cast<double>(held(below, Tier::host)), static_cast<double>(16 * elements), static_cast<double>(slack)) << stage;
    EXPECT_EQ(held(here, Tier::device), 0);
  }
}

// On a disk are the 12 bytes of the state, block by block; the 4 of the gradient stay on the host, with what the disk's engine works in.
TEST(Engine, StateOnADiskLeavesTheHostItsGradients) {
  const test::Scratch disk;
  const auto plan = [&](const std::vector<std::string>& more) {
    std::vector<std::string> all{"model.width=64",
                                 "precision.compute=bf16",
                                 "zero.stage=3",
                                 "nvme.block_size=4096",
                                 "zero.offload_optimizer.device=nvme",
                                 "zero.offload_optimizer.nvme_path=" + disk.path()};
    all.insert(all.end(), more.begin(), more.end());
    return test::plan_alone(test::tiny_deck(all));
  };
  const auto held = [](const RunPlan& p, Tier tier) { return static_cast<double>(p.memory.persistent[static_cast<std::size_t>(tier)]); };
  const RunPlan state = plan({}), all = plan({"zero.offload_param.device=nvme"}),
                most = plan({"zero.offload_param.device=nvme", "zero.offload_param.max_in_cpu=30000"}),
                half = plan({"zero.offload_optimizer.ratio=0.5"});
  double elements = 0, offloaded = 0, small = 0;
  for (const Unit& unit : state.layout().units)
    elements += static_cast<double>(unit.elements), small += unit.persistent ? static_cast<double>(unit.elements) : 0;
  for (const Held& part : half.schedule.state)
    if (part.group == "adam_m" && half.schedule.buffers[static_cast<std::size_t>(part.use.buffer)].tier == Tier::nvme)
      offloaded += static_cast<double>(part.elements.size());
  constexpr double slack = 64 * plan_alignment, engine = (8 + 1) * 4096;
  EXPECT_NEAR(held(state, Tier::nvme), 12 * elements, slack);
  EXPECT_NEAR(held(state, Tier::host), 4 * elements + engine, slack);
  EXPECT_NEAR(held(all, Tier::nvme), 12 * elements + 2 * (elements - small), slack);
  EXPECT_NEAR(held(most, Tier::host) - held(all, Tier::host), held(all, Tier::nvme) - held(most, Tier::nvme), slack);
  EXPECT_GT(held(most, Tier::host), held(all, Tier::host));
  EXPECT_LE(held(most, Tier::host) - held(all, Tier::host), 2 * 30000 + slack);
  EXPECT_GE(offloaded, elements / 2);
  EXPECT_LT(offloaded, elements);
  EXPECT_NEAR(held(half, Tier::nvme), 12 * offloaded, slack);
}

// Kept streams wait on the host or on a disk: of many layers a few are with the kernels at a time.
TEST(Engine, OffloadedStreamsLeaveTheMemoryOfTheKernels) {
  const test::Scratch disk;
  const auto activations = [&](int layers, const std::string& offload) {
    const RunPlan p =
        test::plan_alone(test::tiny_deck({fmt::format("model.layers={}", layers), "activation.recompute=full", "nvme.block_size=4096",
                                          "activation.offload=" + offload, "zero.offload_optimizer.nvme_path=" + disk.path()}));
    const Tier kernels = offload == "none" ? Tier::host : Tier::device;
    return p.memory.by_category[static_cast<std::size_t>(kernels)][static_cast<std::size_t>(Category::activations)];
  };
  EXPECT_GT(activations(32, "none"), activations(8, "none"));
  for (const char* offload : {"host", "nvme"}) EXPECT_EQ(activations(32, offload), activations(8, offload)) << offload;
}

// Of a model in bf16 on one rank, whose units are all sharded then: the kernels' memory holds no parameters but those that are gathered.
TEST(Engine, OffloadedParametersComeUpForEachUse) {
  const auto parameters = [](const std::string& device, Tier tier) {
    const RunPlan plan = test::plan_alone(test::tiny_deck(
        {"precision.compute=bf16", "zero.stage=3", "zero.offload_optimizer.device=host", "zero.offload_param.device=" + device}));
    return plan.memory.by_category[static_cast<std::size_t>(tier)][static_cast<std::size_t>(Category::parameters)];
  };
  EXPECT_GT(parameters("none", Tier::device), 0);
  EXPECT_EQ(parameters("host", Tier::device), 0);
  EXPECT_EQ(parameters("host", Tier::host), parameters("none", Tier::device));
}

TEST(Engine, AStopThatIsAskedForIsReported) {
  const Deck deck = test::tiny_deck({"batch.global=4"});
  Engine engine(test::plan_alone(deck));
  engine.initialise_weights();
  fill_batch(engine, deck, 2, 3);
  EXPECT_EQ(engine.step().stop, 0);
  EXPECT_EQ(engine.step({.stop = true}).stop, 1);
  EXPECT_EQ(engine.step().stop, 0);
}

// Of a batch in which not all targets count: loss and gradient are means over those that do, and the routers' losses stay those of all
// tokens.
TEST(Engine, TheLossIsTheMeanOverTargetsThatCount) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{}, {"model.experts=4", "model.router_aux_loss=0.1", "model.router_z_loss=0.01"}}) {
    std::vector<std::string> overrides{"batch.global=4", "optimizer.gradient_clipping=0"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const Deck deck = test::tiny_deck(overrides);
    SCOPED_TRACE(more.size());
    Engine engine(test::plan_alone(deck, Purpose::training, 2));
    const Weights weights = random_weights(deck, 1);
    set(engine, weights);
    fill_batch(engine, deck, 2, 3);
    std::int64_t targets = 0;
    for (std::int64_t m = 0; m < 2; ++m)
      for (std::size_t i = 0; i < engine.targets(m).size(); ++i) {
        engine.row_weights(m)[i] = i % 3 == 1 ? 1 : 0;
        targets += i % 3 == 1;
      }
    const std::int64_t tokens = deck.batch.global * deck.batch.sequence_length;
    ASSERT_LT(targets, tokens / 2);
    engine.set_weight(0, 1), engine.set_weight(1, 1);
    const double mean = engine.evaluate({.tokens = tokens}).loss;
    const StepReport report = engine.step();
    EXPECT_EQ(report.targets, targets);
    EXPECT_NEAR(report.loss, mean, 1e-9 * mean);
    const auto figures = engine.router_figures();
    double squares = 0;
    for (const Parameter& p : engine.layout().table)
      for (const float g : engine.gradient_of(p.name)) squares += static_cast<double>(g) * g;
    EXPECT_NEAR(report.grad_norm / std::sqrt(squares), 1, 1e-6);
    // Against the loss itself, along the gradient.
    Weights gradient;
    for (const Parameter& p : engine.layout().table) gradient[p.name] = engine.gradient_of(p.name);
    const auto total_at = [&](double e) {
      Weights moved = weights;
      for (const auto& [name, g] : gradient)
        for (std::size_t i = 0; i < g.size(); ++i) moved[name][i] += static_cast<float>(e * static_cast<double>(g[i]));
      set(engine, moved);
      engine.set_weight(0, 1), engine.set_weight(1, 1);
      double loss = engine.evaluate({.tokens = tokens}).loss;
      if (const auto router = engine.router_figures(); router && router->balance > 0) {
        const auto layers = static_cast<double>(deck.model.layers);
        loss += layers * (deck.model.router_aux_loss * router->balance + deck.model.router_z_loss * router->z);
      }
      return loss;
    };
    const double e = 1e-3 / std::sqrt(squares),
                 slope = (8 * (total_at(e) - total_at(-e)) - (total_at(2 * e) - total_at(-2 * e))) / (12 * e);
    EXPECT_NEAR(slope / squares, 1, 2e-3);
    set(engine, weights);
    for (std::int64_t m = 0; m < 2; ++m) std::ranges::fill(engine.row_weights(m), 1);
    engine.step();
    const auto figures_of_all = engine.router_figures();
    if (figures) {
      EXPECT_NEAR(figures->balance, figures_of_all->balance, 1e-9) << "the routers see the same tokens, whichever count";
      EXPECT_NEAR(figures->z, figures_of_all->z, 1e-9);
      EXPECT_EQ(figures->load, figures_of_all->load);
    }
  }
}

TEST(Engine, EvaluationChangesNothingAndCountsWeights) {
  const Deck deck = test::tiny_deck({"batch.global=4"});
  Engine engine(test::plan_alone(deck, Purpose::training, 2));
  set(engine, random_weights(deck, 1));
  fill_batch(engine, deck, 2, 3);
  const std::int64_t per_micro = deck.batch.micro * deck.batch.sequence_length;
  auto evaluate = [&](float first, float second) {
    std::ranges::fill(engine.row_weights(0), first), std::ranges::fill(engine.row_weights(1), second);
    return engine.evaluate({.tokens = per_micro}).loss;
  };
  const double one = evaluate(1, 0), other = evaluate(0, 1), both = evaluate(1, 1);
  EXPECT_NEAR((one + other) / 2, both, 1e-9);
  EXPECT_NEAR(evaluate(0.75f, 0.25f), 0.75 * one + 0.25 * other, 1e-7);
  EXPECT_EQ(evaluate(0.5f, 0.5f), both) << "weights are relative to each other";
  evaluate(1, 1);
  EXPECT_GT(std::abs(one - other), 1e-6);
  EXPECT_NEAR(engine.step().loss, both, 1e-9) << "a step after an evaluation must count every micro-batch";
}

TEST(Engine, GradientsInBf16AreThoseInFp32Rounded) {
  for (const char* reproducible : {"false", "true"}) {
    const auto engine_with = [&](const char* gradients) {
      const Deck deck = test::tiny_deck({"batch.global=2", fmt::format("precision.gradients={}", gradients),
                                         fmt::format("run.reproducible={}", reproducible), "optimizer.gradient_clipping=0"});
      auto engine = std::make_unique<Engine>(test::plan_alone(deck));
      engine->initialise_weights();
      fill_batch(*engine, deck, 1, 5);
      return engine;
    };
    const auto exact = engine_with("fp32"), rounded = engine_with("bf16");
    EXPECT_EQ(exact->step().loss, rounded->step().loss) << "the forward pass is the same";
    int differ = 0;
    for (const Parameter& p : exact->layout().table) {
      const std::vector<float> whole = exact->gradient_of(p.name), half = rounded->gradient_of(p.name);
      for (std::size_t i = 0; i < whole.size(); ++i) {
        ASSERT_EQ(half[i], static_cast<float>(bf16(whole[i]))) << p.name << " " << i;
        differ += half[i] != whole[i];
      }
    }
    EXPECT_GT(differ, 1000) << "or nothing was rounded";
  }
}

// Three steps, so that what the updates write is read again, by each way in which weights reach the kernels.
TEST(Engine, StepsInFp16AreNearThoseInFp32) {
  const std::vector<std::vector<std::string>> models = {
      {}, {"model.qk_norm=true", "model.qkv_bias=true", "run.reproducible=true"}, {"zero.stage=3", "zero.offload_optimizer.device=host"}};
  for (const auto& overrides : models) {
    Deck deck = test::tiny_deck(overrides);
    std::vector<StepReport> reports[2];
    for (const DType type : {DType::f32, DType::f16}) {
      deck.precision.compute = type;
      Engine engine(test::plan_alone(deck));
      set(engine, random_weights(deck, 1));
      fill_batch(engine, deck, accumulation_steps(deck, 1), 2);
      for (int step = 0; step < 3; ++step) reports[type == DType::f16].push_back(engine.step());
    }
    for (std::size_t step = 0; step < 3; ++step) {
      const StepReport &whole = reports[0][step], &half = reports[1][step];
      EXPECT_NEAR(half.loss / whole.loss, 1, 1e-3) << "step " << step;
      EXPECT_NE(half.loss, whole.loss);
      EXPECT_NEAR(half.grad_norm / whole.grad_norm, 1, 1e-2) << "step " << step;
    }
  }
}

TEST(Engine, APlanThatDoesNotFitIsRefusedWithWhatToChange) {
  const Deck deck = test::tiny_deck({"memory.host=64 KiB"});
  const std::string text = test::error_of(ExitCode::memory, [&] { require_fits(test::plan_alone(deck), limits_here(deck, 1)); });
  for (const char* part : {"memory.host", "64.00 KiB", "batch.micro", "zero.stage"}) EXPECT_TRUE(test::has(text, part)) << text;
}

TEST(Engine, AnotherModelsCheckpointIsRefusedByItsFirstTensor) {
  const test::Scratch scratch;
  const Deck deck = test::tiny_deck({"batch.global=4"});
  Engine engine(test::plan_alone(deck));
  engine.initialise_weights();
  fill_batch(engine, deck, 2, 3);
  engine.step();
  io::begin_checkpoint(scratch.path(), 1);
  io::write_shard(scratch.path(), 1, engine.state().checkpoint_layout(), 0, engine.state().checkpoint_slices());
  io::write_index(scratch.path(), engine.state().checkpoint_layout(),
                  {.step = 1, .sample_cursor = 4, .seed = 1, .deck = print_deck(deck), .identity = "", .version = "test"});
  io::commit_checkpoint(scratch.path(), 1, {});
  const io::CheckpointReader reader(scratch / "latest");

  Engine same(test::plan_alone(deck));
  same.read_state(reader);
  same.publish();
  for (const Parameter& p : engine.layout().table) EXPECT_EQ(same.weight_of(p.name), engine.weight_of(p.name)) << p.name;
  fill_batch(engine, deck, 2, 4);
  fill_batch(same, deck, 2, 4);
  const StepReport a = engine.step(), b = same.step();
  EXPECT_EQ(a.loss, b.loss);
  EXPECT_EQ(a.grad_norm, b.grad_norm);
  EXPECT_EQ(same.weight_of("layers.0.mlp.w_down"), engine.weight_of("layers.0.mlp.w_down")) << "moments were lost";

  const std::vector<std::pair<std::string, std::string>> others = {{"model.ff_width=56", "layers.0.mlp.w_gate"},
                                                                   {"model.layers=3", "layers.2.attention.norm"},
                                                                   {"model.layers=1", "layers.1.attention.norm"},
                                                                   {"model.tied=true", "head.weight"}};
  for (const auto& [change, tensor] : others) {
    Engine other(test::plan_alone(test::tiny_deck({"batch.global=4", change})));
    const std::string text = test::error_of(ExitCode::checkpoint, [&] { other.read_state(reader); });
    EXPECT_TRUE(test::has(text, tensor)) << change << ": " << text;
  }
}

}  // namespace
}  // namespace tessera::engine_test
