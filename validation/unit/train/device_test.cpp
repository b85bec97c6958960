// A checkpoint's model in a GPU's memory, for evaluate and generate. The emulator's device memory is host memory: there a copy that is
// missing goes unseen, on a GPU it does not.
#include "train/engine/device.hpp"
#include "base/backend.hpp"

#include <gtest/gtest.h>

#include "../model/random_models.hpp"
#include "../plan_alone.hpp"
#include "../relative_difference.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "generate/inference.hpp"
#include "kernels/cuda/devices.hpp"
#include "train/engine/fit.hpp"
#include "train/text/decoder.hpp"
#include "train/text/sampling.hpp"
#include "validation/watched_device.hpp"
#ifdef TESSERA_EMULATED_GPU
#include <emulator.hpp>
#endif

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
    const LoadedModel host = load_model(checkpoint, RunDevice::host), device = load_model(checkpoint, RunDevice::cuda);
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
    const LoadedModel model = load_model(checkpoint, on_device ? RunDevice::cuda : RunDevice::host, {.micro_batch = 2});
    std::int32_t token = 0;
    for (auto& t : model.engine->tokens(0)) t = static_cast<std::int32_t>(token++ % deck.model.vocab);
    for (auto& t : model.engine->targets(0)) t = static_cast<std::int32_t>(token++ % deck.model.vocab);
    model.engine->set_weight(0, 1);
    losses[on_device] = model.engine->evaluate({.tokens = 1}).loss;
  }
  EXPECT_GT(losses[0], 0);
  EXPECT_NEAR(losses[1] / losses[0], 1, 1e-5);
}

/// A checkpoint with the deck's initial weights.
std::string write_initial(const test::Scratch& scratch, const Deck& deck) {
  Engine engine(test::plan_alone(deck));
  engine.initialise_weights();
  io::begin_checkpoint(scratch.path(), 1);
  io::write_shard(scratch.path(), 1, engine.state().checkpoint_layout(), 0, engine.state().checkpoint_slices());
  io::write_index(scratch.path(), engine.state().checkpoint_layout(),
                  {.step = 1, .sample_cursor = 0, .seed = 1, .deck = print_deck(deck), .identity = "", .version = "test"});
  io::commit_checkpoint(scratch.path(), 1, {});
  return scratch / io::checkpoint_name(1);
}

/// A checkpoint's model with a decoder on a device.
struct Generator {
  LoadedModel model;
  Decoder decoder;
  Generator(const std::string& checkpoint, RunDevice device, const TextSize& text)
      : model(load_model(checkpoint, device, {.text = text})), decoder(*model.engine) {}
};

std::vector<std::int32_t> some_tokens(std::int64_t n, std::int64_t vocab) {
  test::Random random(3);
  std::vector<std::int32_t> tokens;
  for (std::int64_t i = 0; i < n; ++i) tokens.push_back(static_cast<std::int32_t>(random(0, vocab - 1)));
  return tokens;
}

// Prompts of one token and of more than a piece of the cache; tokens after it see the cache that the prompt has left. Weights as a model
// begins with: with those of tiny_deck bf16 alone, on either device, lies further from fp32 than the bound.
TEST_F(OnDevice, DecodesAsTheHostDoes) {
  const std::vector<std::vector<std::string>> models = {{},
                                                        {"model.tied=true", "model.qk_norm=true"},
                                                        {"model.qkv_bias=true", "model.kv_heads=1"},
                                                        {"model.width=23", "model.ff_width=29", "model.head_dim=6"}};
  for (const auto& [compute, bound] : {std::pair{"fp32", 1e-4}, std::pair{"bf16", 2e-2}})
    for (auto overrides : models) {
      overrides.insert(overrides.end(), {"batch.global=2", "model.init_std=0.1", std::string("precision.compute=") + compute});
      const Deck deck = test::tiny_deck(overrides);
      const test::Scratch scratch;
      const std::string checkpoint = write_initial(scratch, deck);
      const auto tokens = some_tokens(140, deck.model.vocab);
      for (const std::int64_t prompt : {1, 133}) {
        const TextSize text{.prompt = prompt, .capacity = 140};
        Generator host(checkpoint, RunDevice::host, text), device(checkpoint, RunDevice::cuda, text);
        const auto first = std::span(tokens).first(static_cast<std::size_t>(prompt));
        host.decoder.start(first), device.decoder.start(first);
        const auto difference = [&] { return test::relative_difference(device.decoder.logits(), host.decoder.logits()); };
        EXPECT_LT(difference(), bound) << compute << ", prompt " << prompt;
        for (std::int64_t i = prompt; i < prompt + 4; ++i) {
          host.decoder.next(tokens[static_cast<std::size_t>(i)]), device.decoder.next(tokens[static_cast<std::size_t>(i)]);
          EXPECT_LT(difference(), bound) << compute << ", prompt " << prompt << ", then " << i;
        }
      }
    }
}

/// The likeliest text of `tokens` tokens after a prompt, found where the logits are and by the host in logits, and the logits of its last
/// token.
struct Text {
  std::vector<std::int32_t> ids;
  std::vector<float> logits;
  int graphs = 0;  ///< that there were while the decoder lived; of the emulator alone
};
Text likeliest_text(const std::string& checkpoint, RunDevice device, std::int64_t prompt, std::int64_t tokens) {
  TextSize size{.prompt = prompt, .capacity = prompt + tokens};
  Text text;
  Generator drawn(checkpoint, device, size);
  size.likeliest = true;
  {
    Generator generator(checkpoint, device, size);
    generator.decoder.start(some_tokens(prompt, 61));
    drawn.decoder.start(some_tokens(prompt, 61));
    while (generator.decoder.length() < prompt + tokens) {
      text.ids.push_back(generator.decoder.likeliest());
      EXPECT_EQ(text.ids.back(), sample_token(drawn.decoder.logits(), 0, 0, 1, drawn.decoder.length()));
      generator.decoder.next(text.ids.back());
      drawn.decoder.next(text.ids.back());
    }
  }
  const auto logits = drawn.decoder.logits();
  text.logits.assign(logits.begin(), logits.end());
#ifdef TESSERA_EMULATED_GPU
  text.graphs = emulator::live_graphs();
#endif
  return text;
}

// From prompts of one token and of more, over the ends of the cache's pieces of 64 tokens (at 64 and at 128), with graphs that are replayed
// for each token but the first, as by the calls one by one.
TEST_F(OnDevice, AGraphOfATokenGivesWhatItsCallsGive) {
  const std::vector<std::vector<std::string>> models = {
      {"precision.compute=bf16", "model.head_dim=64", "model.heads=7", "model.kv_heads=1"},
      {"precision.compute=fp32", "model.head_dim=96", "model.heads=2", "model.kv_heads=1", "model.qk_norm=true"},
      {"precision.compute=bf16", "model.head_dim=128", "model.heads=2", "model.kv_heads=2", "model.qkv_bias=true"}};
  for (const auto& model : models) {
    Text texts[2][3];
    for (bool graph : {false, true}) {
      auto overrides = model;
      overrides.insert(overrides.end(),
                       {"batch.global=2", "model.init_std=0.1", std::string("kernels.cuda_graph=") + (graph ? "on" : "off")});
      const test::Scratch scratch;
      const std::string checkpoint = write_initial(scratch, test::tiny_deck(overrides));
      texts[graph][0] = likeliest_text(checkpoint, RunDevice::cuda, 1, 5);
      texts[graph][1] = likeliest_text(checkpoint, RunDevice::cuda, 61, 7);
      texts[graph][2] = likeliest_text(checkpoint, RunDevice::cuda, 125, 7);
    }
    for (int prompt : {0, 1, 2}) {
      EXPECT_EQ(texts[1][prompt].ids, texts[0][prompt].ids) << model[1];
      EXPECT_EQ(texts[1][prompt].logits, texts[0][prompt].logits) << model[1];
#ifdef TESSERA_EMULATED_GPU
      EXPECT_EQ(texts[1][prompt].graphs, 1);
      EXPECT_EQ(texts[0][prompt].graphs, 0);
#endif
    }
  }
}

TEST_F(OnDevice, TheLikeliestTextIsTheHosts) {
  for (const auto& model : std::vector<std::vector<std::string>>{{}, {"model.heads=7", "model.kv_heads=1", "model.head_dim=64"}}) {
    auto overrides = model;
    overrides.push_back("batch.global=2");
    const test::Scratch scratch;
    const std::string checkpoint = write_initial(scratch, test::tiny_deck(overrides));
    for (const std::int64_t prompt : {1, 5, 61}) {
      const Text host = likeliest_text(checkpoint, RunDevice::host, prompt, 8),
                 device = likeliest_text(checkpoint, RunDevice::cuda, prompt, 8);
      EXPECT_EQ(device.ids, host.ids);
      EXPECT_EQ(host.ids.size(), 8u);
    }
  }
}

TEST_F(OnDevice, ATokenBeyondTheCacheIsADefectWithAGraphToo) {
  const test::Scratch scratch;
  const std::string checkpoint = write_initial(scratch, test::tiny_deck({"batch.global=2", "kernels.cuda_graph=on"}));
  Generator generator(checkpoint, RunDevice::cuda, {.prompt = 2, .capacity = 6});
  generator.decoder.start(some_tokens(2, 61));
  for (std::int32_t token = 0; token < 4; ++token) generator.decoder.next(token);
  EXPECT_THROW(generator.decoder.next(4), Error);
}

TEST_F(OnDevice, TheCachesOfALongTextCountBeforeTheModelIsLoaded) {
  const test::Scratch scratch;
  const std::string checkpoint = write_initial(scratch, test::tiny_deck({"batch.global=2", "memory.host=1000 GiB"}));
  const LoadedModel one = load_model(checkpoint, RunDevice::cuda, {.text = {.prompt = 1, .capacity = 1}});
  EXPECT_GT(one.engine->plan().bytes[static_cast<std::size_t>(Tier::device)], 0);
  EXPECT_GT(one.engine->plan().bytes[static_cast<std::size_t>(Tier::pinned)], 0);
  EXPECT_EQ(one.engine->plan().bytes[static_cast<std::size_t>(Tier::host)], 0);
  const std::string text = test::error_of(
      ExitCode::memory, [&] { load_model(checkpoint, RunDevice::cuda, {.text = {.prompt = 1, .capacity = std::int64_t{1} << 30}}); });
  for (const char* part : {"of the GPU", "--tokens"}) EXPECT_TRUE(test::has(text, part)) << text;
}

#ifdef TESSERA_EMULATED_GPU
TEST_F(OnDevice, MemoryOfTheGpuIsTakenWhileStartingAlone) {
  const Deck deck = test::tiny_deck({"run.device=cuda", "batch.global=4", "precision.compute=bf16"});
  Engine engine(test::plan_alone(deck));
  engine.initialise_weights();
  for (std::int64_t m = 0; m < engine.accumulation(); ++m) {
    for (auto& t : engine.tokens(m)) t = 1;
    for (auto& t : engine.targets(m)) t = 2;
  }
  engine.step();
  engine.evaluate({.tokens = 1});
  const std::int64_t before = emulator::allocations();
  EXPECT_GT(before, 0) << "at the start something is taken, or this counts nothing";
  for (int step = 1; step < 4; ++step) engine.step();
  engine.evaluate({.tokens = 1});
  engine.state().checkpoint_slices();
  EXPECT_EQ(emulator::allocations(), before);
}
#endif

// The plan of a GPU counts against its own memory, and nothing is allocated when it does not fit.
TEST_F(OnDevice, RefusesAPlanAboveTheFreeMemoryOfTheGpu) {
  const Deck deck = test::tiny_deck({"run.device=cuda"});
  RunPlan plan = test::plan_alone(deck);
  std::int64_t& needed = plan.memory.bytes[static_cast<std::size_t>(Tier::device)];
  needed = static_cast<std::int64_t>(cuda::free_memory() / 2);
  const auto fits = [&](const Deck& of, int sharing) { require_fits(plan, limits_here(of, 1, {.gpu = sharing})); };
  fits(deck, 1);
  const auto refused = [&](const Deck& of, int sharing) { return test::error_of(ExitCode::memory, [&] { fits(of, sharing); }); };
  const std::string shared = refused(deck, 3);
  EXPECT_TRUE(test::has(shared, "for each of the 3 ranks that share it")) << shared;
  const std::string stated = refused(test::tiny_deck({"run.device=cuda", "memory.device=2 GiB"}), 1);
  EXPECT_TRUE(test::has(stated, "memory.device (2.00 GiB)")) << "the deck's number counts where there is more: " << stated;
  needed *= 4;
  const std::string alone = refused(deck, 1);
  EXPECT_TRUE(test::has(alone, "free memory of the GPU")) << alone;
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  tessera::KernelRuntime runtime(1, tessera::spaces_of(tessera::choose_device(tessera::RunDevice::automatic)));
  return tessera::run_all_tests();
}
