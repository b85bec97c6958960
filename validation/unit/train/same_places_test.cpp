// Phases of a run differ in their batch, and nothing of a batch decides what a rank keeps or where it lies.
#include "train/engine/same_places.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "base/error.hpp"
#include "deck/ramp.hpp"

namespace tessera::same_places_test {
namespace {

struct Run {
  std::string name;
  int ranks;
  std::vector<std::string> keys;
  bool cut_differs = false;  ///< were each phase to cut the layers by its own batch
};
void PrintTo(const Run& run, std::ostream* out) { *out << run.name; }

/// Batches of other sizes, of shorter sequences, and of both.
const std::string ramp =
    "batch.ramp=[{ until_step = 2, global = 6 }, { until_step = 4, global = 80, sequence_length = 4 }, { until_step = 6, sequence_length = "
    "16 }]";

RunPlan plan_of(const Deck& deck, int ranks, int rank) {
  return plan_run(request_for(deck, make_mesh(deck, ranks), rank, Purpose::training));
}

class Phases : public testing::TestWithParam<Run> {
 protected:
  Deck deck() const {
    std::vector<std::string> keys = GetParam().keys;
    keys.insert(keys.end(), {"batch.sequence_length=160", ramp});
    return test::tiny_deck(keys, GetParam().ranks);
  }
};

TEST_P(Phases, HaveTheStateInTheSamePlaces) {
  const Deck run = deck();
  const int ranks = GetParam().ranks;
  for (int rank = 0; rank < ranks; ++rank) {
    const RunPlan last = plan_of(run, ranks, rank);
    for (std::size_t k = 0; k + 1 < phases_of(run); ++k)
      EXPECT_NO_THROW(require_same_places(plan_of(deck_in_phase(run, k), ranks, rank), last)) << "phase " << k << ", rank " << rank;
  }
}

TEST_P(Phases, HaveOneCutOfLayers) {
  const Deck run = deck();
  const Mesh mesh = make_mesh(run, GetParam().ranks);
  if (mesh.size(Axis::pp) == 1) return;
  const auto last = layers_of_stages(run, mesh);
  bool differs = false;
  for (std::size_t k = 0; k + 1 < phases_of(run); ++k) {
    const Deck own = deck_in_phase(run, k);
    EXPECT_EQ(layers_of_stages(own, mesh), last) << k;
    Deck alone = run;
    alone.batch = {.global = own.batch.global, .micro = own.batch.micro, .sequence_length = own.batch.sequence_length};
    differs |= layers_of_stages(alone, mesh) != last;
  }
  EXPECT_EQ(differs, GetParam().cut_differs);
}

const Run runs[] = {
    {"stages", 2, {"mesh.pp=2", "model.layers=4", "model.vocab=300"}, true},
    {"sharded_stages", 4, {"mesh.pp=2", "model.layers=4", "model.vocab=300", "zero.stage=3", "zero.param_persistence_threshold=40"}, true},
    {"parted_stages", 4, {"mesh.pp=2", "mesh.tp=2", "model.layers=4", "model.vocab=300", "zero.stage=1", "precision.compute=bf16"}, true},
    {"zero_bubble", 3, {"mesh.pp=3", "model.layers=4", "model.vocab=97", "pipeline.schedule=zero_bubble"}, true},
    {"adapters", 3, {"mesh.pp=3", "model.layers=4", "model.vocab=259", "lora.rank=1", "pipeline.schedule=zero_bubble"}, true},
    {"frozen", 2, {"mesh.pp=2", "model.layers=5", "model.vocab=512", R"(model.freeze=["embedding.*", "layers.0.*"])"}, true},
    {"virtual_stages", 2, {"mesh.pp=2", "model.layers=7", "model.vocab=1024", "pipeline.schedule=interleaved"}, true},
    {"chosen_layers", 2, {"mesh.pp=2", "model.layers=4", "model.vocab=512", "pipeline.layers=[1,3]"}},
    {"shards", 3, {"zero.stage=3", "zero.param_persistence_threshold=auto", "checkpoint.async=true"}},
    {"experts", 4, {"mesh.ep=2", "model.experts=4", "model.shared_ff_width=8", "zero.stage=2", "model.router_balance=bias"}},
    {"offload", 2, {"zero.stage=3", "zero.offload_optimizer.device=host", "zero.offload_param.device=host", "run.reproducible=true"}},
    {"optimizers",
     2,
     {R"(optimizer.groups=[{ tensors = ["layers.*"], type = "muon" }, { tensors = ["head.*"], type = "adafactor" }])", "zero.stage=1"}},
    {"delayed_scales", 2, {"precision.compute=bf16", "precision.fp8=tensorwise_delayed", "zero.stage=3"}},
};
INSTANTIATE_TEST_SUITE_P(All, Phases, testing::ValuesIn(runs), [](const auto& info) { return info.param.name; });

// What lies in a rank's memory may be as many bytes of other tensors, or more of them behind the same: phases are compared by tensor.
TEST(SamePlaces, AreThoseOfTheSameTensors) {
  const auto plan = [](const std::string& cut, int rank) {
    return plan_of(test::tiny_deck({"model.layers=4", "mesh.pp=3", "lora.rank=1", "pipeline.layers=" + cut}, 3), 3, rank);
  };
  EXPECT_NO_THROW(require_same_places(plan("[1,2,1]", 0), plan("[1,1,2]", 0)));
  EXPECT_THROW(require_same_places(plan("[1,2,1]", 0), plan("[2,1,1]", 0)), Error) << "more of it";
  EXPECT_THROW(require_same_places(plan("[2,1,1]", 1), plan("[1,1,2]", 1)), Error) << "another layer";
}

}  // namespace
}  // namespace tessera::same_places_test
