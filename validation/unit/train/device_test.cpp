// A checkpoint's model in a GPU's memory, for evaluate. The emulator's device memory is host memory: there a copy that is missing goes
// unseen, on a GPU it does not.
#include "train/device.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "kernels/cuda/devices.hpp"
#include "scratch.hpp"
#include "sharded_checkpoint.hpp"
#include "train/inference.hpp"
#include "validation/skips.hpp"

namespace tessera {
namespace {

class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = cuda::why_no_device(); !why.empty()) GTEST_SKIP() << "not tested on a GPU: " << why;
  }
};

TEST_F(OnDevice, LoadsTheWeightsOfTheHost) {
  for (const char* compute : {"fp32", "bf16"}) {
    const test::Scratch scratch;
    const Deck deck = test::tiny_deck({std::string("precision.compute=") + compute});
    const std::string checkpoint = test::write_sharded(scratch.path(), deck, 2);
    const LoadedModel host = load_model(checkpoint, 0, "host"), device = load_model(checkpoint, 0, "cuda");
    for (const Parameter& p : host.engine->layout().table)
      EXPECT_EQ(device.engine->weight_of(p.name), host.engine->weight_of(p.name)) << compute << " " << p.name;
  }
}

TEST_F(OnDevice, EvaluatesAsTheHostDoes) {
  const test::Scratch scratch;
  const Deck deck = test::tiny_deck({"precision.compute=fp32"});
  const std::string checkpoint = test::write_sharded(scratch.path(), deck, 1);
  double losses[2] = {};
  for (int on_device = 0; on_device < 2; ++on_device) {
    const LoadedModel model = load_model(checkpoint, 2, on_device ? "cuda" : "host");
    std::int32_t token = 0;
    for (auto& t : model.engine->tokens(0)) t = static_cast<std::int32_t>(token++ % deck.model.vocab);
    for (auto& t : model.engine->targets(0)) t = static_cast<std::int32_t>(token++ % deck.model.vocab);
    model.engine->weight(0) = 1;
    losses[on_device] = model.engine->evaluate(1).loss;
  }
  EXPECT_GT(losses[0], 0);
  EXPECT_NEAR(losses[1] / losses[0], 1, 1e-5);
}

// The plan of a GPU counts against its own memory, and nothing is allocated when it does not fit.
TEST_F(OnDevice, RefusesAPlanAboveTheFreeMemoryOfTheGpu) {
  Deck deck = test::tiny_deck({"run.device=cuda"});
  MemoryPlan plan;
  plan.bytes[static_cast<std::size_t>(Tier::device)] = static_cast<std::int64_t>(cuda::free_memory() / 2);
  require_fits(deck, plan, 1);
  plan.bytes[static_cast<std::size_t>(Tier::device)] *= 4;
  try {
    require_fits(deck, plan, 1);
    FAIL() << "a plan of twice the GPU's memory was taken";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::memory);
    EXPECT_NE(std::string(error.what()).find("of the GPU"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::KernelRuntime runtime(1, tessera::spaces_of(tessera::choose_device("auto")));
  return tessera::run_all_tests();
}
