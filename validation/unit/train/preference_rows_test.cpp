// Pairs and labelled completions in rows of micro-batches.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "../scratch.hpp"
#include "io/tokens/token_writer.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "train/data/batches.hpp"
#include "train/data/training_data.hpp"

namespace tessera::preference_rows_test {
namespace {

using io::TokenSet;

constexpr std::int64_t vocab = 1 << 16;

struct Length {
  std::int64_t prompt = 0, completion = 0;  ///< tokens
};

/// Token t of document d is 64 d + t, so that each token says where it is from; label and margin follow from d.
std::string file_of(const std::string& path, TokenSet set, const std::vector<Length>& lengths, bool margins = true) {
  io::TokenWriter writer(
      path, 4096, std::ssize(lengths), true,
      {.tokenizer = "t", .digest = std::string(32, 'a'), .vocab = vocab, .end_token = 1, .set = set, .margins = margins});
  for (std::size_t d = 0; d < lengths.size(); ++d) {
    writer.begin_document();
    for (std::int64_t t = 0; t < lengths[d].prompt + lengths[d].completion; ++t)
      writer.add(static_cast<std::uint32_t>(64 * d) + static_cast<std::uint32_t>(t), t >= lengths[d].prompt);
    if (set == TokenSet::labels) writer.add_label(d % 3 == 0);
    if (set == TokenSet::pairs && margins && d % 2 == 0) writer.add_margin(static_cast<float>(d) / 4);
  }
  writer.close(), writer.commit();
  return path;
}

/// Pairs of up to `most` tokens each.
std::vector<Length> random_pairs(std::int64_t count, std::int64_t most) {
  std::vector<Length> lengths;
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(2 * count); ++i) {
    const auto draw = [&](std::uint64_t which, std::int64_t below) {
      return static_cast<std::int64_t>(kernels::counter_random(3, which, i) % static_cast<std::uint64_t>(below));
    };
    const std::int64_t prompt = i % 2 == 0 ? 1 + draw(0, most / 2) : lengths.back().prompt;
    lengths.push_back({prompt, 1 + draw(1, most / 2)});
  }
  return lengths;
}

DataKeys keys(Packing packing, TooLong too_long = TooLong::refuse) {
  return {.train = {}, .weights = {}, .epochs = {}, .validation = {}, .document_mask = true, .packing = packing, .too_long = too_long};
}

/// What one micro-batch of `rows` samples from `first` on holds.
struct Batch {
  std::vector<std::int32_t> tokens, targets, starts, sequences, counts;
  std::vector<float> weights, margins;
  std::vector<std::uint8_t> labels;
  std::vector<double> logps;

  Batch(SampleFile& file, std::int64_t T, std::int64_t first, std::int64_t rows, const std::vector<Range>& positions) {
    std::int64_t places = 0;
    for (const Range& part : positions) places += part.size();
    const auto n = static_cast<std::size_t>(rows * places), most = static_cast<std::size_t>(rows * T / 2);
    tokens.resize(n), targets.resize(n), sequences.assign(n, -7), weights.resize(n);
    starts.resize(static_cast<std::size_t>(rows * T)), counts.resize(most), margins.resize(most / 2), labels.resize(most),
        logps.resize(most);
    std::int64_t number = 0;
    for (std::int64_t row = 0; row < rows; ++row) {
      const PreferenceInputs preferences{
          .sequences = sequences, .counts = counts, .reference_logps = logps, .margins = margins, .labels = labels, .first = number};
      file.read(first + row, positions,
                {.tokens = tokens, .targets = targets, .document_starts = starts, .weights = weights, .preferences = preferences}, row);
      number += file.sequences(first + row);
    }
  }
};

/// Each pair once, whole, in one row, with all of its targets, and no other target counts.
void expect_all_pairs(SampleFile& file, const std::vector<Length>& lengths, std::int64_t T) {
  std::set<std::int64_t> seen;
  const std::vector<Range> whole{{0, T}};
  for (std::int64_t sample = 0; sample < file.samples(); ++sample) {
    const Batch batch(file, T, sample, 1, whole);
    ASSERT_EQ(file.sequences(sample) % 2, 0);
    ASSERT_LE(file.sequences(sample), T / 2);
    for (std::int64_t k = 0; k < file.sequences(sample); ++k) {
      std::vector<std::int32_t> found;
      for (std::size_t t = 0; t < static_cast<std::size_t>(T); ++t)
        if (batch.sequences[t] == k) {
          EXPECT_EQ(batch.weights[t], 1);
          found.push_back(batch.targets[t]);
        }
      ASSERT_FALSE(found.empty());
      const std::int64_t document = found.front() / 64;
      EXPECT_EQ(document % 2, k % 2) << "the chosen one has an even number";
      if (k % 2 == 1) {
        EXPECT_TRUE(seen.contains(document - 1)) << "the rejected one lies behind the chosen one of its pair";
      }
      EXPECT_TRUE(seen.insert(document).second) << document;
      const Length& length = lengths[static_cast<std::size_t>(document)];
      std::vector<std::int32_t> wanted;
      for (std::int64_t t = std::max<std::int64_t>(1, length.prompt); t < length.prompt + length.completion; ++t)
        wanted.push_back(static_cast<std::int32_t>(64 * document + t));
      EXPECT_EQ(found, wanted);
      EXPECT_EQ(batch.counts[static_cast<std::size_t>(k)], std::ssize(wanted));
      EXPECT_EQ(batch.margins[static_cast<std::size_t>(k / 2)], static_cast<float>(document - document % 2) / 4);
    }
    for (std::size_t t = 0; t < static_cast<std::size_t>(T); ++t) {
      EXPECT_EQ(batch.weights[t] != 0, batch.sequences[t] >= 0);
      if (batch.starts[t] == static_cast<std::int32_t>(t)) continue;
      EXPECT_EQ(batch.tokens[t], batch.targets[t - 1]) << "a document goes on";
      EXPECT_EQ(batch.starts[t], batch.starts[t - 1]);
    }
  }
  EXPECT_EQ(std::ssize(seen), std::ssize(lengths));
}

TEST(PreferenceRows, EachPairLiesWholeInARow) {
  const test::Scratch scratch;
  const std::vector<Length> lengths = random_pairs(60, 20);
  const std::string path = file_of(scratch / "p.h5", TokenSet::pairs, lengths);
  SampleFile alone(path, 48, vocab, keys(Packing::concatenate), 1, {.set = TokenSet::pairs});
  EXPECT_EQ(alone.samples(), 60) << "one pair a row";
  expect_all_pairs(alone, lengths, 48);
  SampleFile packed(path, 64, vocab, keys(Packing::documents), 1, {.set = TokenSet::pairs});
  EXPECT_LT(packed.samples(), 45);
  expect_all_pairs(packed, lengths, 64);
}

TEST(PreferenceRows, SequencesOfAMicroBatchAreNumberedRowByRow) {
  const test::Scratch scratch;
  const std::string path = file_of(scratch / "p.h5", TokenSet::pairs, random_pairs(40, 12));
  SampleFile file(path, 32, vocab, keys(Packing::documents), 1, {.set = TokenSet::pairs});
  const Batch whole(file, 32, 2, 3, {{0, 32}});
  std::int64_t number = 0;
  for (std::int64_t row = 0; row < 3; ++row) {
    const Batch one(file, 32, 2 + row, 1, {{0, 32}});
    for (std::size_t t = 0; t < 32; ++t) {
      const std::int32_t of = one.sequences[t];
      EXPECT_EQ(whole.sequences[static_cast<std::size_t>(row) * 32 + t], of < 0 ? -1 : of + number);
    }
    for (std::int64_t k = 0; k < file.sequences(2 + row); ++k, ++number)
      EXPECT_EQ(whole.counts[static_cast<std::size_t>(number)], one.counts[static_cast<std::size_t>(k)]);
  }
  // A rank of a ring has two chunks of each row, and counts of whole rows.
  const Batch ring(file, 32, 2, 3, {{8, 16}, {16, 24}});
  for (std::size_t row = 0; row < 3; ++row)
    for (std::size_t t = 0; t < 16; ++t) EXPECT_EQ(ring.sequences[row * 16 + t], whole.sequences[row * 32 + 8 + t]);
  EXPECT_EQ(ring.counts, whole.counts);
}

TEST(PreferenceRows, ALabelledCompletionIsASequence) {
  const test::Scratch scratch;
  const std::string path = file_of(scratch / "l.h5", TokenSet::labels, {{2, 3}, {1, 1}, {4, 2}, {1, 5}});
  SampleFile file(path, 8, vocab, keys(Packing::concatenate), 1, {.set = TokenSet::labels});
  ASSERT_EQ(file.samples(), 4);
  const Batch batch(file, 8, 0, 4, {{0, 8}});
  EXPECT_EQ((std::vector<std::uint8_t>{batch.labels.begin(), batch.labels.begin() + 4}), (std::vector<std::uint8_t>{1, 0, 0, 1}));
  EXPECT_EQ((std::vector<std::int32_t>{batch.counts.begin(), batch.counts.begin() + 5}), (std::vector<std::int32_t>{3, 1, 2, 5, 0}));
}

TEST(PreferenceRows, APairThatIsTooLongIsRefusedOrKeepsItsFirstTokens) {
  const test::Scratch scratch;
  const std::string path =
      file_of(scratch / "p.h5", TokenSet::pairs, {{3, 2}, {3, 30}, {3, 20}, {3, 20}, {12, 9}, {12, 9}, {2, 2}, {2, 2}});
  const PreferenceUse use{.set = TokenSet::pairs};
  const std::string text = test::error_of(ExitCode::data, [&] { SampleFile(path, 20, vocab, keys(Packing::concatenate), 1, use); });
  for (const char* part : {"p.h5: pair 0 takes 36 places", "documents of 5 and 33 tokens", "batch.sequence_length is 20", "data.too_long"})
    EXPECT_TRUE(test::has(text, part)) << text;
  SampleFile file(path, 20, vocab, keys(Packing::concatenate, TooLong::truncate), 1, use);
  ASSERT_EQ(file.samples(), 3) << "a prompt of 12 tokens leaves no target in half of a row";
  const Batch batch(file, 20, 0, 3, {{0, 20}});
  EXPECT_EQ((std::vector<std::int32_t>{batch.counts.begin(), batch.counts.begin() + 6}), (std::vector<std::int32_t>{2, 14, 8, 8, 2, 2}));
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data,
                                       [&] {
                                         SampleFile(file_of(scratch / "q.h5", TokenSet::pairs, {{30, 2}, {30, 2}}), 20, vocab,
                                                    keys(Packing::concatenate, TooLong::truncate), 1, use);
                                       }),
                        "the prompt alone fills"));
}

TEST(PreferenceRows, AFileOfAnotherKindIsRefused) {
  const test::Scratch scratch;
  const std::string pairs = file_of(scratch / "p.h5", TokenSet::pairs, {{3, 2}, {3, 2}});
  const std::string labels = file_of(scratch / "l.h5", TokenSet::labels, {{3, 2}});
  const auto refusal = [&](const std::string& path, TokenSet set) {
    return test::error_of(ExitCode::data, [&] { SampleFile(path, 8, vocab, keys(Packing::concatenate), 1, {.set = set}); });
  };
  EXPECT_TRUE(test::has(refusal(labels, TokenSet::pairs), "holds completions with labels, but the objective of this run takes preference"));
  EXPECT_TRUE(test::has(refusal(pairs, TokenSet::labels), "tessera tokenize --preferences"));
  EXPECT_TRUE(test::has(refusal(pairs, TokenSet::documents), "rejected ones too"));
}

TEST(PreferenceRows, DamagedDocumentsAreRefused) {
  const test::Scratch scratch;
  const auto refusal = [&](const std::vector<Length>& lengths) {
    return test::error_of(ExitCode::data, [&] {
      SampleFile file(file_of(scratch / "p.h5", TokenSet::pairs, lengths), 16, vocab, keys(Packing::concatenate), 1,
                      {.set = TokenSet::pairs});
      for (std::int64_t sample = 0; sample < file.samples(); ++sample) Batch(file, 16, sample, 1, {{0, 16}});
    });
  };
  EXPECT_TRUE(test::has(refusal({{3, 2}, {0, 0}, {3, 2}, {3, 2}}), "is empty"));
  EXPECT_TRUE(test::has(refusal({{3, 2}, {1, 0}}), "document 1 has one token"));
  EXPECT_TRUE(test::has(refusal({{3, 2}, {5, 0}}), "no target of document 1 counts"));
}

Deck deck_of(const std::vector<std::string>& files) {
  Deck deck;
  deck.batch.sequence_length = 48, deck.batch.global = 4, deck.model.vocab = vocab, deck.run.steps = 10;
  deck.data = keys(Packing::documents);
  deck.data.train = files;
  deck.data.weights.assign(files.size(), 1.0);
  return deck;
}

TEST(PreferenceRows, AStepsSequencesAreKnownFromTheOrder) {
  const test::Scratch scratch;
  const std::string first = file_of(scratch / "p.h5", TokenSet::pairs, random_pairs(60, 20)),
                    second = file_of(scratch / "q.h5", TokenSet::pairs, random_pairs(30, 10));
  TrainingData data(deck_of({first, second}), {.set = TokenSet::pairs});
  for (std::int64_t cursor : {0, 4, 36}) {
    std::int64_t counted = 0;
    for (std::int64_t sample = cursor; sample < cursor + 4; ++sample) {
      std::vector<std::int32_t> counts(24);
      data.read(sample, std::vector<Range>{{0, 48}}, {.tokens = {}, .targets = {}, .preferences = {.counts = counts}}, 0);
      counted += std::ranges::count_if(counts, [](std::int32_t n) { return n > 0; });
      EXPECT_EQ(data.sequences(sample, 1), std::ranges::count_if(counts, [](std::int32_t n) { return n > 0; }));
    }
    EXPECT_EQ(data.sequences(cursor, 4), counted);
  }
  const std::string bare = file_of(scratch / "r.h5", TokenSet::pairs, random_pairs(30, 10), false);
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data,
                                       [&] {
                                         TrainingData(deck_of({first, bare}), {.set = TokenSet::pairs});
                                       }),
                        "margins"));
}

}  // namespace
}  // namespace tessera::preference_rows_test
