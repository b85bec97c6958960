// Samples cut from a token file.
#include "train/data/batches.hpp"

#include <gtest/gtest.h>

#include "../scratch.hpp"
#include "io/tokens/token_writer.hpp"

namespace tessera::batches_test {
namespace {

const std::vector<Range> whole = {{0, 5}};

/// Token i of the file is i % 50.
std::string tokens_file(const test::Scratch& scratch, int count) {
  const std::string path = scratch / "t.bin";
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(i % 50), bytes += '\0';
  test::spill(path, bytes);
  return path;
}

TEST(SampleFile, TargetsAreInputsOneFurtherOn) {
  const test::Scratch scratch;
  SampleFile file(tokens_file(scratch, 36), 5, 50);  // 7 samples need 36 tokens
  ASSERT_EQ(file.samples(), 7);
  std::vector<std::int32_t> inputs(15, -1), targets(15, -1);
  for (std::int64_t sample = 0; sample < 7; ++sample) {
    file.read(sample, whole, {inputs, targets}, 2);
    for (std::int64_t t = 0; t < 5; ++t) {
      EXPECT_EQ(inputs[static_cast<std::size_t>(10 + t)], sample * 5 + t);
      EXPECT_EQ(targets[static_cast<std::size_t>(10 + t)], sample * 5 + t + 1);
    }
  }
  for (std::size_t i = 0; i < 10; ++i) EXPECT_TRUE(inputs[i] == -1 && targets[i] == -1) << "another row was touched";
}

TEST(SampleFile, AShareHoldsItsPositionsAlone) {
  const test::Scratch scratch;
  SampleFile file(tokens_file(scratch, 36), 5, 50);
  std::vector<std::int32_t> inputs(4, -1), targets(4, -1);
  file.read(3, std::vector<Range>{{3, 5}}, {inputs, targets}, 1);
  EXPECT_EQ(inputs, (std::vector<std::int32_t>{-1, -1, 18, 19}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{-1, -1, 19, 20})) << "the last target of a share is another's first input";
}

TEST(SampleFile, AShareOfARingHasTwoChunksOfEachSequence) {
  const test::Scratch scratch;
  SampleFile file(tokens_file(scratch, 33), 8, 50);
  std::vector<std::int32_t> inputs(8, -1), targets(8, -1);
  file.read(1, std::vector<Range>{{0, 2}, {6, 8}}, {inputs, targets}, 1);
  EXPECT_EQ(inputs, (std::vector<std::int32_t>{-1, -1, -1, -1, 8, 9, 14, 15}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{-1, -1, -1, -1, 9, 10, 15, 16})) << "each chunk has its own next tokens";
}

TEST(SampleFile, PartsOfASampleAreItsTokensInTheirOrder) {
  const test::Scratch scratch;
  SampleFile file(tokens_file(scratch, 49), 12, 50);
  ASSERT_EQ(file.samples(), 4);
  for (const std::int64_t parts : {1, 2, 3, 12}) {
    const std::int64_t length = 12 / parts;
    std::vector<std::int32_t> seen;
    for (std::int64_t number = 0; number < 4 * parts; ++number) {
      std::vector<std::int32_t> inputs(static_cast<std::size_t>(length)), targets(inputs.size());
      file.read(sequence_at(0, number, parts), std::vector<Range>{{0, length}}, {inputs, targets}, 0);
      for (std::size_t t = 0; t < inputs.size(); ++t) EXPECT_EQ(targets[t], inputs[t] + 1);
      seen.insert(seen.end(), inputs.begin(), inputs.end());
    }
    ASSERT_EQ(seen.size(), 48U);
    for (std::size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], static_cast<std::int32_t>(i)) << parts << " parts";
  }
}

TEST(SampleFile, CountsOnlyWholeSamples) {
  const test::Scratch scratch;
  EXPECT_EQ(SampleFile(tokens_file(scratch, 35), 5, 50).samples(), 6);
  EXPECT_EQ(SampleFile(tokens_file(scratch, 6), 5, 50).samples(), 1);
}

TEST(SampleFile, TooFewTokensSaySo) {
  const test::Scratch scratch;
  const std::string path = tokens_file(scratch, 5);
  const std::string text = test::error_of(ExitCode::data, [&] { SampleFile(path, 5, 50); });
  for (const char* part : {"t.bin", "5 tokens", "6"}) EXPECT_TRUE(test::has(text, part)) << text;
}

TEST(SampleFile, ATokenAboveTheVocabularyIsNamed) {
  const test::Scratch scratch;
  SampleFile file(tokens_file(scratch, 60), 5, 49);
  std::vector<std::int32_t> inputs(5), targets(5);
  EXPECT_NO_THROW(file.read(0, whole, {inputs, targets}, 0));
  const std::string text = test::error_of(ExitCode::data, [&] { file.read(9, whole, {inputs, targets}, 0); });
  EXPECT_TRUE(test::has(text, "49")) << text;
}

TEST(SampleFile, TheWholeFileIsChecked) {
  const test::Scratch scratch;
  const std::string path = tokens_file(scratch, 36);
  SampleFile file(path, 5, 35);  // token 35 is the last one, the target of the last sample
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { file.check(nullptr); }), "token 35 at position 35"));
  SampleFile wide(path, 5, 36);
  wide.check(nullptr);
  // What was found is kept: the next start knows without reading.
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { SampleFile(path, 5, 35).check(nullptr); }), "token 35 at position 35"));
}

TEST(SampleFile, ATokenizerMayHaveMoreTokensThanTheModelAndTheTexts) {
  const test::Scratch scratch;
  io::TokenWriter writer(scratch / "t.h5", 100, 1, false,
                         {.tokenizer = "padded", .digest = std::string(32, 'a'), .vocab = 321, .end_token = 1});
  writer.begin_document();
  for (std::uint32_t i = 0; i < 100; ++i) writer.add(i);
  writer.close(), writer.commit();
  SampleFile file(scratch / "t.h5", 8, 100);
  file.check(nullptr);
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { SampleFile(scratch / "t.h5", 8, 99); }),
                        "it has token 99 at position 99. Set model.vocab=321"));
}

TEST(SampleFile, PreferencesAreNotLearntAsTexts) {
  const test::Scratch scratch;
  test::spill(scratch / "p.jsonl", R"({"prompt": "question", "chosen": "yes", "rejected": "no"})");
  io::tokenize({.inputs = {scratch / "p.jsonl"}, .output_dir = scratch / "data", .preferences = true});
  const std::string text = test::error_of(ExitCode::data, [&] { SampleFile(scratch / "data/train.h5", 8, 257); });
  for (const char* part :
       {"data/train.h5 holds preference pairs", "rejected ones too", "set preference.objective=dpo", "without --preferences"})
    EXPECT_TRUE(test::has(text, part)) << text;
}

TEST(SampleFile, ALargerDeclaredVocabularyIsRefused) {
  const test::Scratch scratch;
  test::spill(scratch / "a.txt", std::string(2000, 'x'));
  io::tokenize({.inputs = {scratch / "a.txt"}, .output_dir = scratch / "data"});
  const std::string text = test::error_of(ExitCode::data, [&] { SampleFile(scratch / "data/train.h5", 8, 256); });
  EXPECT_TRUE(test::has(text, "model.vocab=257")) << text;
  EXPECT_EQ(SampleFile(scratch / "data/train.h5", 8, 257).tokenizer(), "byte");
}

}  // namespace
}  // namespace tessera::batches_test
