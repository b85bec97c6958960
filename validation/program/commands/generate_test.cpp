// tessera generate: what it prints, on the host and, where there is one (the emulator too), on a GPU.
#include <gtest/gtest.h>

#include <limits>

#include <algorithm>
#include <filesystem>

#include "../../unit/altered_checkpoint.hpp"
#include "../../unit/model/random_models.hpp"
#include "../../unit/sharded_checkpoint.hpp"
#include "base/backend.hpp"
#include "program.hpp"
#ifdef TESSERA_CUDA
#include "kernels/cuda/devices.hpp"
#endif

namespace tessera::generate_test {
namespace {

bool has_device() {
#ifdef TESSERA_CUDA
  return cuda::device_count() > 0;
#else
  return false;
#endif
}

test::Finished generate(const test::Scratch& scratch, const std::string& checkpoint, std::vector<std::string> more) {
  std::vector<std::string> arguments{"generate", checkpoint};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return test::run_program(scratch, arguments);
}

std::ptrdiff_t commas(const std::string& text) { return std::count(text.begin(), text.end(), ','); }

TEST(GenerateCommand, ContinuesIdsTheSameWayEachTime) {
  const test::Scratch scratch;
  const std::string checkpoint = test::write_sharded(scratch.path(), test::tiny_deck(), 2);
  const std::vector<std::string> arguments{"--prompt-tokens", "1,2,3", "--tokens", "20"};
  const auto first = generate(scratch, checkpoint, arguments);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(commas(first.out), 19) << first.out;
  EXPECT_EQ(generate(scratch, checkpoint, arguments).out, first.out);
  auto other = arguments;
  other.insert(other.end(), {"--seed", "2"});
  EXPECT_NE(generate(scratch, checkpoint, other).out, first.out);
  const auto longer = generate(scratch, checkpoint, {"--prompt-tokens", "1,2,3", "--tokens", "25"});
  EXPECT_EQ(longer.out.substr(0, first.out.size() - 1), first.out.substr(0, first.out.size() - 1)) << "the text's room changed the text";
}

TEST(GenerateCommand, TakesTheFolderOfARun) {
  const test::Scratch scratch;
  const std::string run = scratch / "run";
  std::filesystem::create_directories(run + "/checkpoints");
  const std::vector<std::string> arguments{"--prompt-tokens", "1,2,3", "--tokens", "8"};
  const auto none = generate(scratch, run, arguments);
  EXPECT_EQ(none.status, 4) << none.err;
  EXPECT_HAS(none.err, "this run has no checkpoint yet");
  const std::string checkpoint = test::write_sharded(run + "/checkpoints", test::tiny_deck(), 2);
  const auto by_step = generate(scratch, checkpoint, arguments);
  for (const std::string& folder : {run, run + "/", run + "/checkpoints"}) {
    const auto done = generate(scratch, folder, arguments);
    EXPECT_EQ(done.status, 0) << done.err;
    EXPECT_EQ(done.out, by_step.out);
    EXPECT_HAS(done.err, "its newest checkpoint is");
  }
}

TEST(CommandLine, SaysWhatWasProbablyMeant) {
  const test::Scratch scratch;
  const auto refused = [&](const std::vector<std::string>& arguments, const std::string& words) {
    const auto done = test::run_program(scratch, arguments);
    EXPECT_EQ(done.status, 2) << done.err;
    EXPECT_HAS(done.err, words);
    EXPECT_HAS(done.err, "try: tessera");
  };
  refused({"generate", "RUN", "--promt", "x"}, "--promt is not an option of tessera generate; did you mean --prompt?");
  refused({"generate", "RUN", "--promt=x"}, "did you mean --prompt?");
  refused({"generate", "RUN", "--xyzzy", "x"}, "--xyzzy is not an option of tessera generate\n");
  refused({"train", "deck.toml", "--run.steps=5"}, "run.steps is a key of a deck, and keys have no dashes: write run.steps=5");
  refused({"train", "deck.toml", "--zero.stage", "3"}, "write zero.stage=VALUE");
  refused({"export", "RUN"}, "did you mean consolidate?");
  refused({"trian", "deck.toml"}, "did you mean train?");
}

TEST(GenerateCommand, ATextThatCannotBeTokenizedIsRefused) {
  const test::Scratch scratch;
  const std::string checkpoint = test::write_sharded(scratch.path(), test::tiny_deck(), 1);
  const auto refuse = [&](const std::vector<std::string>& arguments, int status, const std::string& words) {
    const auto done = generate(scratch, checkpoint, arguments);
    EXPECT_EQ(done.status, status) << done.err;
    EXPECT_HAS(done.err, words);
  };
  refuse({"--chat", "why?"}, 2, "--chat needs a chat template, but this checkpoint's run has no tokenizer. Give --tokenizer DIR");
  refuse({"--prompt", "why?"}, 2, "no tokenizer. Give --tokenizer DIR");
  refuse({"--prompt", "why?", "--tokenizer", scratch / "none"}, 3, "none/tokenizer.json");
  refuse({"--prompt", "\xff"}, 3, "the prompt is not UTF-8");
}

TEST(GenerateCommand, ADeviceSaysTheLikeliestTextOfTheHost) {
  if (!has_device()) GTEST_SKIP() << "no GPU: not tested on one";
  const test::Scratch scratch;
  const std::string checkpoint = test::write_sharded(scratch.path(), test::tiny_deck(), 1);
  const std::vector<std::string> arguments{"--prompt-tokens", "5,6,7,8", "--tokens", "20", "--temperature", "0", "--device"};
  auto on = [&](const char* device) {
    auto all = arguments;
    all.push_back(device);
    const auto done = generate(scratch, checkpoint, all);
    EXPECT_EQ(done.status, 0) << done.err;
    return done.out;
  };
  const std::string host = on("host");
  EXPECT_EQ(commas(host), 19) << host;
  EXPECT_EQ(on("cuda"), host);
}

TEST(GenerateCommand, WithoutADeviceCudaIsRefusedInALine) {
  if (has_device()) GTEST_SKIP() << "there is a GPU, or the emulator";
  const test::Scratch scratch;
  const std::string checkpoint = test::write_sharded(scratch.path(), test::tiny_deck(), 1);
  const auto done = generate(scratch, checkpoint, {"--prompt-tokens", "1", "--device", "cuda"});
  EXPECT_EQ(done.status, 6);
  EXPECT_EQ(std::count(done.err.begin(), done.err.end(), '\n'), 1) << done.err;
  EXPECT_EQ(generate(scratch, checkpoint, {"--prompt-tokens", "1", "--tokens", "2"}).status, 0) << "auto takes the host";
}

// A model of the byte tokenizer prints text after text, and ids after ids.
TEST(GenerateCommand, PrintsIdsWhereIdsWereGiven) {
  const test::Scratch scratch;
  const std::string checkpoint = test::write_sharded(scratch.path(), test::tiny_deck({"model.vocab=257"}), 1);
  const auto ids = generate(scratch, checkpoint, {"--prompt-tokens", "65,66", "--tokens", "6"});
  EXPECT_EQ(commas(ids.out), 5) << ids.out;
  EXPECT_EQ(ids.out.find_first_not_of("0123456789,\n"), std::string::npos) << ids.out;
  const auto text = generate(scratch, checkpoint, {"--prompt", "AB", "--tokens", "1"});
  EXPECT_EQ(text.out.substr(0, 2), "AB");
}

// A model of the byte tokenizer whose logits are NaN once drew the separator: an empty text and status 0.
TEST(GenerateCommand, AModelWhoseLogitsAreNoNumbersIsRefused) {
  const test::Scratch scratch;
  const Deck deck = test::tiny_deck({"model.vocab=257"});
  const std::string checkpoint = test::write_sharded(scratch.path(), deck, 1);
  const TensorRef norm = make_layout(parameter_table(deck.model), 1, 0).find("head.norm");
  test::alter_checkpoint(checkpoint, "master", norm.unit, norm.offset, std::numeric_limits<float>::quiet_NaN());
  std::vector<std::string> devices{"host"};
  if (has_device()) devices.push_back("cuda");
  for (const std::string& device : devices)
    for (const char* temperature : {"0", "0.8"})
      for (const char* top_k : {"0", "40"}) {
        const auto done =
            generate(scratch, checkpoint, {"--prompt", "AB", "--device", device, "--temperature", temperature, "--top-k", top_k});
        EXPECT_EQ(done.status, 8) << device << " " << temperature << " " << top_k;
        EXPECT_TRUE(test::has(done.err, "tessera inspect CHECKPOINT --verify")) << done.err;
      }
}

TEST(GenerateCommand, BadUseSaysWhatToDo) {
  const test::Scratch scratch;
  const std::string checkpoint = test::write_sharded(scratch.path(), test::tiny_deck({"memory.host=8 MiB"}), 1);
  EXPECT_EQ(generate(scratch, checkpoint, {"--device", "tpu"}).status, 2);
  const auto text = generate(scratch, checkpoint, {"--prompt", "AB"});
  EXPECT_EQ(text.status, 2);
  EXPECT_TRUE(test::has(text.err, "--prompt-tokens")) << text.err;
  const auto large = generate(scratch, checkpoint, {"--prompt-tokens", "1", "--tokens", "100000", "--device", "host"});
  EXPECT_EQ(large.status, 5);
  EXPECT_TRUE(test::has(large.err, "fewer --tokens")) << large.err;
}

}  // namespace
}  // namespace tessera::generate_test
