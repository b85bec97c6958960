// Documents of a token file: where they begin in samples, and whole ones put into sequences.
#include "train/data/documents.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "../scratch.hpp"
#include "io/hdf5/hdf5.hpp"
#include "kernels/elementwise/elementwise.hpp"
#include "train/data/batches.hpp"

namespace tessera::documents_test {
namespace {

constexpr std::int32_t no_target = -1;  // of a weight of 0
using Numbers = std::vector<std::int32_t>;

/// Token i of the file is i, and documents begin where they are told to.
std::string file_of(const test::Scratch& scratch, std::int64_t tokens, const std::vector<std::int64_t>& begins) {
  const std::string path = scratch / "t.h5";
  std::vector<std::uint32_t> ids(static_cast<std::size_t>(tokens));
  std::iota(ids.begin(), ids.end(), 0u);
  auto file = io::hdf5::File::create(path, {}, ExitCode::storage);
  file.create_extendible("tokens", io::hdf5::Element::u32, 1024).append<std::uint32_t>(ids);
  file.create_extendible("documents", io::hdf5::Element::i64, 1024).append<std::int64_t>(begins);
  file.close();
  return path;
}

/// Documents of 1 to `longest` tokens, and where the last ends.
std::vector<std::int64_t> random_begins(std::int64_t count, std::int64_t longest) {
  std::vector<std::int64_t> begins{0};
  for (std::uint64_t i = 0; i < static_cast<std::uint64_t>(count); ++i)
    begins.push_back(begins.back() + 1 + static_cast<std::int64_t>(kernels::counter_random(7, 0, i) % static_cast<std::uint64_t>(longest)));
  return begins;
}

struct Row {
  Numbers tokens, targets, starts;
  std::vector<float> weights;
  explicit Row(std::int64_t T, std::int64_t share = 0)
      : tokens(static_cast<std::size_t>(share ? share : T), -7),
        targets(tokens),
        starts(static_cast<std::size_t>(T), -7),
        weights(tokens.size(), -7) {}
  MicroBatch to() { return {.tokens = tokens, .targets = targets, .document_starts = starts, .weights = weights}; }
};
Row read(SampleFile& file, std::int64_t sample, std::int64_t T) {
  Row row(T);
  file.read(sample, std::vector<Range>{{0, T}}, row.to(), 0);
  for (std::size_t t = 0; t < row.targets.size(); ++t) {
    EXPECT_TRUE(row.weights[t] == 0 || row.weights[t] == 1);
    if (row.weights[t] == 0) row.targets[t] = no_target;
  }
  return row;
}

constexpr std::int64_t vocab = 1 << 20;
const DataKeys masked{.train = {}, .weights = {}, .epochs = {}, .validation = {}, .document_mask = true};
DataKeys packing(TooLong too_long = TooLong::refuse) {
  return {.train = {},
          .weights = {},
          .epochs = {},
          .validation = {},
          .document_mask = true,
          .packing = Packing::documents,
          .too_long = too_long};
}

TEST(Documents, ASampleKnowsWhereItsDocumentsBegin) {
  const test::Scratch scratch;
  SampleFile file(file_of(scratch, 25, {0, 3, 4, 4, 11, 16}), 8, vocab, masked);
  ASSERT_EQ(file.samples(), 3);
  EXPECT_TRUE(file.masked());
  const Row first = read(file, 0, 8), second = read(file, 1, 8), third = read(file, 2, 8);
  EXPECT_EQ(first.starts, (Numbers{0, 0, 0, 3, 4, 4, 4, 4}));
  EXPECT_EQ(first.targets, (Numbers{1, 2, no_target, no_target, 5, 6, 7, 8})) << "no target is the first token of another document";
  EXPECT_EQ(second.starts, (Numbers{0, 0, 0, 3, 3, 3, 3, 3})) << "of one that began in the sample before: 0";
  EXPECT_EQ(second.tokens, (Numbers{8, 9, 10, 11, 12, 13, 14, 15}));
  EXPECT_EQ(second.targets, (Numbers{9, 10, no_target, 12, 13, 14, 15, no_target})) << "the next sample begins with a document";
  EXPECT_EQ(third.starts, Numbers(8, 0));
}

TEST(Documents, AFileMustSayWhereTheyBegin) {
  const test::Scratch scratch;
  const auto refusal = [&](std::int64_t tokens, const std::vector<std::int64_t>& begins) {
    const std::string path = file_of(scratch, tokens, begins);
    return test::error_of(ExitCode::data, [&] { SampleFile(path, 4, vocab, masked); });
  };
  EXPECT_TRUE(test::has(refusal(20, {2, 5}), "document 0 of the dataset 'documents' begins at token 2"));
  EXPECT_TRUE(test::has(refusal(20, {0, 9, 8}), "document 2 of the dataset 'documents' begins at token 8"));
  EXPECT_TRUE(test::has(refusal(20, {0, 20}), "document 1 of the dataset 'documents' begins at token 20"));
  EXPECT_TRUE(test::has(refusal(20, {}), "data.document_mask"));
  const std::string bin = scratch / "t.bin";
  test::spill(bin, std::string(40, '\1'));
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { SampleFile(bin, 4, vocab, masked); }), "t.bin does not store where"));
}

/// What rows hold: each token with its target, that no row's documents meet, and that padding is its first token, alone.
std::map<std::int32_t, std::int32_t> pairs_of(SampleFile& file, std::int64_t T) {
  std::map<std::int32_t, std::int32_t> pairs;
  for (std::int64_t sample = 0; sample < file.samples(); ++sample) {
    const Row row = read(file, sample, T);
    std::int32_t start = 0;
    std::size_t filled = static_cast<std::size_t>(T);
    while (row.targets[filled - 1] == no_target) --filled;
    for (std::size_t t = 0; t < filled; ++t) {
      if (t > 0 && row.targets[t - 1] != row.tokens[t]) start = static_cast<std::int32_t>(t);
      EXPECT_EQ(row.starts[t], start) << "sample " << sample << ", position " << t;
      EXPECT_TRUE(pairs.emplace(row.tokens[t], row.targets[t]).second) << row.tokens[t] << " is there twice";
    }
    for (std::size_t t = filled; t < static_cast<std::size_t>(T); ++t) {
      EXPECT_EQ(row.tokens[t], row.tokens[0]) << "sample " << sample << ", position " << t;
      EXPECT_EQ(row.starts[t], static_cast<std::int32_t>(t)) << "a document of its own";
    }
  }
  return pairs;
}

TEST(PackedRows, EveryTokenOfEveryDocumentOnceAndNothingElse) {
  const test::Scratch scratch;
  std::vector<std::int64_t> begins = random_begins(300, 30);
  const std::int64_t tokens = begins.back(), T = 32;
  begins.pop_back();
  SampleFile file(file_of(scratch, tokens, begins), T, vocab, packing());
  std::map<std::int32_t, std::int32_t> expected;
  for (std::int64_t t = 0; t + 1 < tokens; ++t)
    if (!std::binary_search(begins.begin(), begins.end(), t + 1))
      expected.emplace(static_cast<std::int32_t>(t), static_cast<std::int32_t>(t + 1));
  EXPECT_EQ(pairs_of(file, T), expected);
  EXPECT_LT(static_cast<double>(file.samples() * T), 1.15 * static_cast<double>(expected.size())) << "padding";
}

TEST(PackedRows, ADocumentThatIsTooLong) {
  const test::Scratch scratch;
  const std::string path = file_of(scratch, 40, {0, 5, 30});  // of 5, 25 and 10 tokens
  const std::string text = test::error_of(ExitCode::data, [&] { SampleFile(path, 9, vocab, packing()); });
  for (const char* part : {"t.h5", "document 1 has 25 tokens", "from 5 on", "data.too_long"}) EXPECT_TRUE(test::has(text, part)) << text;
  SampleFile truncated(path, 9, vocab, packing(TooLong::truncate)), split(path, 9, vocab, packing(TooLong::split));
  std::map<std::int32_t, std::int32_t> first, all;
  for (std::int32_t t = 0; t < 39; ++t) {
    if (t == 4 || t == 29) continue;  // the last of a document
    all.emplace(t, t + 1);
    if (t < 14 || t >= 30) first.emplace(t, t + 1);
  }
  EXPECT_EQ(pairs_of(truncated, 9), first);
  EXPECT_EQ(pairs_of(split, 9), all);
  EXPECT_NO_THROW(SampleFile(path, 24, vocab, packing())) << "25 tokens are 24 inputs and a target";
}

TEST(PackedRows, NoDocumentOfTwoTokensIsRefused) {
  const test::Scratch scratch;
  const std::string path = file_of(scratch, 3, {0, 1, 2});
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { SampleFile(path, 9, vocab, packing()); }), "none of its 3 documents"));
}

TEST(PackedRows, AreThoseOfTheSeed) {
  const test::Scratch scratch;
  const std::string path = file_of(scratch, 4000, random_begins(250, 15));
  const auto row = [&](std::int64_t seed) {
    SampleFile file(path, 64, vocab, packing(TooLong::split), seed);
    return read(file, 3, 64).tokens;
  };
  EXPECT_EQ(row(1), row(1));
  EXPECT_NE(row(1), row(2));
}

TEST(PackedRows, SharesOfASequenceAreItsParts) {
  const test::Scratch scratch;
  SampleFile file(file_of(scratch, 4000, random_begins(250, 15)), 64, vocab, packing(TooLong::split));
  for (std::int64_t sample : {0, 7}) {
    const Row whole = read(file, sample, 64);
    for (std::int64_t share = 0; share < 4; ++share) {
      Row part(64, 16);
      file.read(sample, std::vector<Range>{{16 * share, 16 * share + 16}}, part.to(), 0);
      EXPECT_TRUE(std::equal(part.tokens.begin(), part.tokens.end(), whole.tokens.begin() + 16 * share));
      EXPECT_TRUE(std::equal(part.targets.begin(), part.targets.end(), whole.targets.begin() + 16 * share));
      EXPECT_EQ(part.starts, whole.starts) << "of the whole sequence";
    }
  }
}

TEST(Documents, SquaresAreThoseOfTheirLengths) {
  const Numbers starts = {0, 0, 0, 3, 3, 5, 0, 1, 1, 1, 1, 1};  // rows of 6: documents of 3, 2 and 1, and of 1 and 5
  EXPECT_EQ(squares_of_documents(starts, 6), 9 + 4 + 1 + 1 + 25);
  EXPECT_EQ(squares_of_documents(Numbers(2 * 7, 0), 7), 2 * 49) << "one document a row";
  EXPECT_EQ(squares_of_documents({}, 7), 0);
}

}  // namespace
}  // namespace tessera::documents_test
