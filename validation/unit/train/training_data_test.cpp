// Files with weights as one sequence of samples.
#include "train/data/training_data.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "io/tokens/token_writer.hpp"
#include "train/data/data_order.hpp"

namespace tessera::training_data_test {
namespace {

using namespace tessera::test;

constexpr int T = 4;

/// `samples` samples, each of one token over and over: `first`, `first` + 1, ...
std::string file_of(const std::string& path, int samples, int first) {
  std::string bytes;
  for (int i = 0; i <= samples * T; ++i) bytes += static_cast<char>(first + std::min(i / T, samples - 1)), bytes += '\0';
  spill(path, bytes);
  return path;
}

Deck deck_of(const std::vector<std::string>& files, const std::vector<double>& weights) {
  Deck deck = tiny_deck();
  deck.batch.sequence_length = T, deck.batch.global = 10, deck.run.steps = 100, deck.model.vocab = 257;
  deck.data.train = files, deck.data.weights = weights;
  return deck;
}

/// The first tokens of samples [from, to).
std::vector<std::int32_t> order_of(TrainingData& data, std::int64_t from, std::int64_t to) {
  std::vector<std::int32_t> order, tokens(T), targets(T);
  for (std::int64_t cursor = from; cursor < to; ++cursor) {
    data.read(cursor, std::vector<Range>{{0, T}}, {tokens, targets}, 0);
    order.push_back(tokens[0]);
  }
  return order;
}

TEST(TrainingData, TakesFilesByWeightAndEachInEpochsOfItsOwn) {
  const Scratch dir;
  TrainingData data(deck_of({file_of(dir / "a.bin", 20, 0), file_of(dir / "b.bin", 20, 100), file_of(dir / "c.bin", 5, 200)}, {6, 3, 1}));
  const std::vector<std::int32_t> order = order_of(data, 0, 1000);
  std::map<int, std::vector<std::int32_t>> of_file;
  for (std::size_t i = 0; i < order.size(); ++i) {
    of_file[order[i] / 100].push_back(order[i] % 100);
    const std::vector<std::int64_t> served = data.served(static_cast<std::int64_t>(i) + 1);
    for (int k = 0; k < 3; ++k) ASSERT_EQ(served[static_cast<std::size_t>(k)], static_cast<std::int64_t>(of_file[k].size()));
  }
  EXPECT_EQ(of_file[0].size(), 600u);
  EXPECT_EQ(of_file[1].size(), 300u);
  EXPECT_EQ(of_file[2].size(), 100u);
  for (auto& [file, samples] : of_file) {
    const std::size_t n = file == 2 ? 5 : 20;
    for (std::size_t epoch = 0; (epoch + 1) * n <= samples.size(); ++epoch) {
      std::vector<std::int32_t> sorted(samples.begin() + static_cast<std::ptrdiff_t>(epoch * n),
                                       samples.begin() + static_cast<std::ptrdiff_t>((epoch + 1) * n));
      std::ranges::sort(sorted);
      for (std::size_t s = 0; s < n; ++s) ASSERT_EQ(sorted[s], static_cast<std::int32_t>(s)) << "file " << file << ", epoch " << epoch;
    }
  }
  of_file[0].resize(20), of_file[1].resize(20);
  EXPECT_NE(of_file[0], of_file[1]) << "files of one size have orders of their own";
}

TEST(TrainingData, AnyCursorIsReachedAtOnce) {
  const Scratch dir;
  const Deck deck = deck_of({file_of(dir / "a.bin", 20, 0), file_of(dir / "b.bin", 30, 100)}, {0.7, 0.3});
  TrainingData whole(deck);
  const std::vector<std::int32_t> all = order_of(whole, 0, 300);
  for (const std::int64_t from : {1, 17, 100, 299}) {
    TrainingData resumed(deck);
    EXPECT_EQ(order_of(resumed, from, 300), std::vector<std::int32_t>(all.begin() + from, all.end())) << "from " << from;
  }
}

TEST(TrainingData, OneFileIsInTheOrderThatItAlwaysHad) {
  const Scratch dir;
  const Deck deck = deck_of({file_of(dir / "a.bin", 23, 0)}, {});
  TrainingData data(deck);
  const std::vector<std::int32_t> order = order_of(data, 0, 60);
  for (std::int64_t i = 0; i < 60; ++i)
    EXPECT_EQ(order[static_cast<std::size_t>(i)], sample_at(static_cast<std::uint64_t>(deck.run.seed), 23, i));
}

TEST(TrainingData, SaysHowOftenItPassesOverEachFile) {
  const Scratch dir;
  Deck deck = deck_of({file_of(dir / "a.bin", 20, 0), file_of(dir / "b.bin", 30, 100)}, {3, 1});
  const std::vector<std::string> said = TrainingData(deck).lines();
  EXPECT_HAS(said[0], "a.bin: 75 % of the samples, 750 sequences of the run, 37.50 passes over its 20");
  EXPECT_HAS(said[1], "b.bin: 25 % of the samples, 250 sequences of the run, 8.33 passes over its 30");
  deck.data.epochs = {0, 8.5};
  EXPECT_NO_THROW(TrainingData{deck});
  deck.data.epochs = {0, 8};
  EXPECT_HAS(error_of(ExitCode::data, [&] { TrainingData{deck}; }), "b.bin, which has 30: 8.33 passes over it, but data.epochs allows 8.");
  deck = deck_of({dir / "a.bin"}, {});
  EXPECT_HAS(TrainingData(deck).lines()[0], "a.bin: 100 % of the samples, 1000 sequences of the run, 50.00 passes over its 20");
  deck.data.epochs = {1};
  EXPECT_HAS(error_of(ExitCode::data, [&] { TrainingData{deck}; }), "50.00 passes over it, but data.epochs allows 1.");
}

TEST(TrainingData, CountsTheStepsOfPasses) {
  const Scratch dir;
  struct Case {
    double epochs;
    std::int64_t batch, steps;
  };
  Deck deck = deck_of({file_of(dir / "a.bin", 20, 0), file_of(dir / "b.bin", 30, 100)}, {2, 3});
  for (const Case& c : std::vector<Case>{{1, 10, 5}, {1, 7, 8}, {3, 50, 3}, {0.5, 10, 3}, {1.1, 55, 1}, {1e-6, 10, 1}, {0.02, 1, 1}}) {
    deck.run.steps = 0, deck.run.epochs = c.epochs, deck.batch.global = c.batch;
    const CountedSteps counted = count_steps(deck);
    EXPECT_EQ(counted.steps, c.steps) << c.epochs << " over batches of " << c.batch;
    // A limit of so many passes allows the run of so many: what fills its last step up is not counted.
    deck.run.steps = counted.steps, deck.data.epochs = {c.epochs, c.epochs};
    EXPECT_NO_THROW(TrainingData{deck}) << c.epochs << " over batches of " << c.batch;
  }
  EXPECT_HAS(count_steps(deck).why, "50 sequences of data.train a pass / batch.global 1, rounded up");
  deck.data.train[1] = dir / "gone.bin";
  EXPECT_HAS(error_of(ExitCode::data, [&] { count_steps(deck); }), "gone.bin");
  EXPECT_EQ(count_steps_if_readable(deck).steps, 0);
  EXPECT_HAS(count_steps_if_readable(deck).why, "a start counts the samples of data.train; here");
}

TEST(TrainingData, NamesTheFileThatCannotBeUsed) {
  const Scratch dir;
  const std::string a = file_of(dir / "a.bin", 20, 0);
  EXPECT_HAS(error_of(ExitCode::data, [&] { TrainingData{deck_of({a, dir / "gone.bin"}, {1, 1})}; }), "gone.bin");
  spill(dir / "short.bin", std::string(2 * T, '\0'));
  EXPECT_HAS(error_of(ExitCode::data,
                      [&] {
                        TrainingData{deck_of({a, dir / "short.bin"}, {1, 1})};
                      }),
             "short.bin has 4 tokens, fewer than one sample");
}

std::string written(const std::string& path, const io::TokenKind& kind, bool masked) {
  io::TokenWriter writer(path, 100, 1, masked, kind);
  writer.begin_document();
  for (std::uint32_t i = 0; i < 100; ++i) masked ? writer.add(i % 50, i % 2 == 1) : writer.add(i % 50);
  writer.close(), writer.commit();
  return path;
}

TEST(TrainingData, FilesOfTwoTokenizersAreRefused) {
  const Scratch dir;
  const std::string bytes = written(dir / "bytes.h5", {}, false), unknown = file_of(dir / "a.bin", 20, 0);
  const std::string one = written(dir / "one.h5", {.tokenizer = "one", .digest = std::string(32, 'a'), .vocab = 50, .end_token = 1}, false);
  const std::string same =
      written(dir / "same.h5", {.tokenizer = "copy of one", .digest = std::string(32, 'a'), .vocab = 50, .end_token = 1}, false);
  const std::string two = written(dir / "two.h5", {.tokenizer = "two", .digest = std::string(32, 'b'), .vocab = 50, .end_token = 1}, false);
  const auto open = [](const std::string& a, const std::string& b) { TrainingData{deck_of({a, b}, {1, 1})}; };
  open(one, same), open(unknown, one), open(bytes, unknown);
  EXPECT_HAS(error_of(ExitCode::data, [&] { open(one, two); }),
             "one.h5 holds tokens of one, digest aaaaaaaa and " + two + " tokens of two, digest bbbbbbbb");
  EXPECT_HAS(error_of(ExitCode::data, [&] { open(bytes, one); }), "bytes.h5 holds bytes and " + one + " tokens of one");
}

TEST(TrainingData, TheSameTokensUnderTwoNamesAreRefused) {
  const Scratch dir;
  const std::string a = file_of(dir / "a.bin", 20, 0), b = file_of(dir / "b.bin", 20, 1), plain = written(dir / "plain.h5", {}, false),
                    masked = written(dir / "masked.h5", {}, true);
  fs::copy_file(a, dir / "copy.bin"), fs::create_symlink(plain, dir / "link.h5");
  const auto check = [](const std::string& one, const std::string& other) { TrainingData(deck_of({one, other}, {1, 2})).check(nullptr); };
  EXPECT_NO_THROW(check(a, b));
  EXPECT_NO_THROW(check(plain, masked)) << "other tokens count";
  EXPECT_HAS(error_of(ExitCode::data, [&] { check(a, dir / "copy.bin"); }), "a.bin and " + dir / "copy.bin" + " hold the same tokens");
  EXPECT_HAS(error_of(ExitCode::data, [&] { check(plain, dir / "link.h5"); }), "hold the same tokens");
}

TEST(TrainingData, AFileWithALossMaskBesideOneWithout) {
  const Scratch dir;
  const std::string plain = written(dir / "plain.h5", {}, false), masked = written(dir / "masked.h5", {}, true);
  EXPECT_FALSE(TrainingData(deck_of({plain}, {})).masked());
  TrainingData data(deck_of({plain, masked}, {1, 1}));
  EXPECT_TRUE(data.masked());
  for (std::int64_t cursor = 0; cursor < 20; ++cursor) {
    std::vector<float> weights(T, -1);
    data.read(cursor, std::vector<Range>{{0, T}}, {.tokens = {}, .targets = {}, .weights = weights}, 0);
    const auto dropped = std::ranges::count(weights, 0.0f);
    EXPECT_EQ(std::ranges::count(weights, 1.0f), T - dropped);
    EXPECT_EQ(dropped, cursor % 2 == 0 ? 0 : T / 2) << "sample " << cursor;
  }
}

}  // namespace
}  // namespace tessera::training_data_test
