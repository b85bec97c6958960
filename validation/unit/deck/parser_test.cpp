#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>

#include "base/check.hpp"
#include "small_deck.hpp"

namespace tessera::parser_test {
namespace {

TEST(Parser, SmallDeckAndItsDefaults) {
  ParsedDeck parsed = parse_small();
  ASSERT_EQ(faults_of(parsed), "");
  const Deck& d = parsed.deck;
  EXPECT_EQ(d.run.steps, 100);
  EXPECT_EQ(d.run.name, "small");
  EXPECT_EQ(d.run.output_dir, "runs/small");
  EXPECT_EQ(d.run.device, RunDevice::automatic);
  EXPECT_EQ(d.run.resume, "auto");
  EXPECT_EQ(d.model.head_dim, 16);
  EXPECT_EQ(d.model.kv_heads, 4);
  EXPECT_EQ(d.precision.compute, DType::bf16);
  EXPECT_EQ(d.zero.overlap_comm, OverlapComm::automatic);
  EXPECT_EQ(d.mesh.dp, 0);
  // The defaults of DeepSpeed.
  EXPECT_EQ(d.zero.stage, 0);
  EXPECT_EQ(d.zero.reduce_bucket_size, 500000000);
  EXPECT_EQ(d.zero.allgather_bucket_size, 500000000);
  EXPECT_EQ(d.zero.prefetch_bucket_size, 64 * (2 * 16 * (4 + 4) + 3 * 128)) << "ours: the largest unit, a layer";
  EXPECT_EQ(d.zero.param_persistence_threshold, 100000);
  EXPECT_EQ(d.zero.max_live_parameters, 1000000000);
  EXPECT_EQ(d.zero.max_reuse_distance, 1000000000);
  EXPECT_EQ(d.zero.sub_group_size, 1000000000);
}

TEST(Parser, AutoIsResolvedWithItsReason) {
  ParsedDeck parsed = parse_small({"zero.reduce_bucket_size=auto", "zero.prefetch_bucket_size=auto"}, 2);
  ASSERT_EQ(faults_of(parsed), "");
  EXPECT_EQ(parsed.deck.mesh.dp, 2);
  EXPECT_EQ(parsed.deck.zero.reduce_bucket_size, 4096);
  EXPECT_EQ(parsed.deck.zero.prefetch_bucket_size, 40960);
  std::string all = fmt::format("{}", fmt::join(parsed.resolved, "\n"));
  EXPECT_NE(all.find("model.head_dim = 16 (auto: model.width 64 / model.heads 4)"), std::string::npos) << all;
  EXPECT_NE(all.find("mesh.dp = 2 (auto: all ranks of the launch)"), std::string::npos) << all;
  EXPECT_NE(all.find("zero.reduce_bucket_size = 4096 (auto: width squared, model.width 64)"), std::string::npos) << all;
}

TEST(Parser, OverridesInOrder) {
  ParsedDeck parsed = parse_small({"run.steps=5", "run.steps=1_000", "zero.stage=3", "run.output_dir=/tmp/x y", "run.reproducible=true",
                                   "zero.overlap_comm=false", "zero.reduce_bucket_size=2e6", "memory.host=8 GiB", "run.name=2024",
                                   "precision.compute=fp32", "data.validation=\"a # b\"", "mesh.dp=auto", "optimizer.learning_rate = 1"});
  ASSERT_EQ(faults_of(parsed), "");
  const Deck& d = parsed.deck;
  EXPECT_EQ(d.run.steps, 1000);
  EXPECT_EQ(d.zero.stage, 3);
  EXPECT_EQ(d.run.output_dir, "/tmp/x y");
  EXPECT_TRUE(d.run.reproducible);
  EXPECT_EQ(d.zero.overlap_comm, OverlapComm::no);
  EXPECT_EQ(d.zero.reduce_bucket_size, 2000000);
  EXPECT_EQ(d.memory.host, std::int64_t{8} << 30);
  EXPECT_EQ(d.run.name, "2024") << "a key that holds text takes digits as text";
  EXPECT_EQ(d.precision.compute, DType::f32);
  EXPECT_EQ(d.data.validation, "a # b");
  EXPECT_EQ(d.optimizer.learning_rate, 1.0);
}

TEST(Parser, ListsOfTexts) {
  EXPECT_EQ(parse_small({"activation.recompute=full", "activation.keep=[\"attention\", \"mlp.gate_up\"]"}).deck.activation.keep,
            (std::vector<std::string>{"attention", "mlp.gate_up"}));
  const std::string text = small_deck + "[activation]\nrecompute = \"auto\"\nkeep = [\"mlp\"]\n";
  const ParsedDeck parsed = parse_deck_text(text, "small.toml", {}, 0);
  ASSERT_EQ(faults_of(parsed), "");
  EXPECT_EQ(parsed.deck.activation.keep, std::vector<std::string>{"mlp"});
  EXPECT_EQ(parse_deck_text(print_deck(parsed.deck), "printed.toml", {}, 0).deck, parsed.deck);
  EXPECT_EQ(deck_identity(parsed.deck), deck_identity(parse_small().deck)) << "a run may go on with another set";
  EXPECT_NE(faults_of(parse_small({"activation.recompute=full", "activation.keep=[\"a\", 2]"})).find("got an array"), std::string::npos);
  EXPECT_NE(faults_of(parse_small({"activation.recompute=full", "activation.keep=attention"})).find("a list of texts"), std::string::npos);
}

TEST(Parser, OverrideReplacesWhatTheFileSays) {
  ParsedDeck parsed = parse_deck_text(small_deck + "[mesh]\ntp = 2\n", "small.toml", {"mesh.tp=1"}, 0);
  EXPECT_EQ(faults_of(parsed), "");
}

TEST(Parser, OverrideOfATextIsNoList) {
  EXPECT_NE(faults_of(parse_small({"data.validation=[\"a\", \"b\"]"})).find("expected text in double quotes, got [\"a\", \"b\"]"),
            std::string::npos);
  EXPECT_NE(faults_of(parse_small({"data.train={a = 1}"})).find("got a section"), std::string::npos);
  // Brackets that are no list of TOML belong to a name, and quotes make a name of any list.
  EXPECT_EQ(parse_small({"data.validation=[a].h5"}).deck.data.validation, "[a].h5");
  EXPECT_EQ(parse_small({"data.validation=\"[1]\""}).deck.data.validation, "[1]");
}

TEST(Parser, OneFileOrAListOfThem) {
  using Texts = std::vector<std::string>;
  EXPECT_EQ(parse_small({"data.train=my tokens.h5"}).deck.data.train, Texts{"my tokens.h5"});
  EXPECT_EQ(parse_small({"data.train=[a].h5"}).deck.data.train, Texts{"[a].h5"});
  const Deck one = parse_small({"data.train=[\"a.h5\"]"}).deck;
  EXPECT_EQ(deck_identity(one), deck_identity(parse_small({"data.train=a.h5"}).deck)) << "a list of one file is that file";
  const ParsedDeck two = parse_small({"data.train=[\"a.h5\", \"b.h5\"]", "data.weights=[0.5, 2]", "data.epochs=[3, 0]"});
  ASSERT_EQ(faults_of(two), "");
  EXPECT_EQ(two.deck.data.train, (Texts{"a.h5", "b.h5"}));
  EXPECT_EQ(two.deck.data.weights, (std::vector<double>{0.5, 2}));
  EXPECT_EQ(two.deck.data.epochs, (std::vector<double>{3, 0}));
  EXPECT_EQ(parse_deck_text(print_deck(two.deck), "printed", {}, 0).deck, two.deck);
  EXPECT_EQ(parse_small({"data.train=7"}).deck.data.train, Texts{"7"});
  EXPECT_NE(faults_of(parse_small({"data.weights=[\"a\"]"})).find("a list of numbers"), std::string::npos);
  EXPECT_NE(faults_of(parse_small({"data.weights=0.5"})).find("a list of numbers"), std::string::npos);
}

TEST(Parser, AFileInThePlaceOfAMixtureDropsItsWeights) {
  const auto mixture = [](const std::vector<std::string>& overrides) {
    std::string deck = small_deck;
    const std::string one = "train = \"data/train.h5\"";
    deck.replace(deck.find(one), one.size(), "train = [\"a.h5\", \"b.h5\"]\nweights = [1, 2]");
    return parse_deck_text(deck, "small.toml", overrides, 0);
  };
  EXPECT_EQ(faults_of(mixture({})), "");
  const ParsedDeck one = mixture({"data.train=c.h5"});
  EXPECT_EQ(faults_of(one), "");
  EXPECT_TRUE(one.deck.data.weights.empty());
  EXPECT_NE(one.resolved.back().find("data.weights = [1, 2] of small.toml is dropped"), std::string::npos) << one.resolved.back();
  EXPECT_NE(faults_of(mixture({"data.train=[\"c.h5\", \"d.h5\", \"e.h5\"]"})).find("here are 2 for 3 files"), std::string::npos);
}

TEST(Parser, OverrideTextMustBeUtf8) {
  EXPECT_NE(faults_of(parse_small({"run.output_dir=\xff\xfe"})).find("is not valid UTF-8"), std::string::npos);
  EXPECT_EQ(faults_of(parse_small({"run.output_dir=l\xc3\xa4ufe/\xe2\x82\xac"})), "");
}

TEST(Parser, OverrideWithNewlineIsText) {
  ParsedDeck parsed = parse_small({"run.output_dir=a\nb"});
  ASSERT_EQ(faults_of(parsed), "");
  EXPECT_EQ(parsed.deck.run.output_dir, "a\nb");
  EXPECT_NE(faults_of(parse_small({"run.steps=3\n[model]"})), "");
}

TEST(Parser, DottedKeysAndInlineTables) {
  ParsedDeck parsed = parse_deck_text(
      "run.steps = 3\nmodel = {layers = 1, width = 8, heads = 1, ff_width = 8, vocab = 5}\n"
      "batch.global = 1\nbatch.micro = 1\nbatch.sequence_length = 4\ndata.train = 'x.bin'\n"
      "optimizer.learning_rate = 1\nzero.offload_param.device = 'none'\n",
      "d", {}, 0);
  EXPECT_EQ(faults_of(parsed), "");
  EXPECT_EQ(parsed.deck.model.head_dim, 8);
}

TEST(Parser, PlaceOfAFault) {
  ParsedDeck parsed = parse_deck_text(small_deck + "[zero]\n   stage = 9\n", "small.toml", {}, 0);
  ASSERT_EQ(parsed.faults.size(), 1u);
  EXPECT_EQ(parsed.faults[0].file, "small.toml");
  EXPECT_EQ(parsed.faults[0].line, 18);
  EXPECT_EQ(parsed.faults[0].column, 12);
  EXPECT_EQ(parsed.faults[0].key, "zero.stage");
}

TEST(Parser, WindowsLinesAndByteOrderMark) {
  std::string text = "\xef\xbb\xbf";
  for (char c : small_deck) text += c == '\n' ? "\r\n" : std::string(1, c);
  EXPECT_EQ(faults_of(parse_deck_text(text, "d", {}, 0)), "");
}

// Whatever is cut off or flipped in a deck, the parser answers with faults or a deck, never with an exception or a crash.
TEST(Parser, SurvivesDamage) {
  for (std::size_t cut = 0; cut < small_deck.size(); ++cut) {
    ParsedDeck parsed = parse_deck_text(small_deck.substr(0, cut), "cut.toml", {}, 2);
    if (cut + 5 < small_deck.size()) {
      EXPECT_FALSE(parsed.faults.empty()) << "cut at " << cut;
    }
  }
  for (std::size_t i = 0; i < small_deck.size(); ++i) {
    for (char c : {'\0', '\n', '"', '[', '=', '\xff', '#', '9'}) {
      std::string text = small_deck;
      text[i] = c;
      ParsedDeck parsed = parse_deck_text(text, "flip.toml", {}, 2);
      for (const Fault& f : parsed.faults) EXPECT_FALSE(f.message.empty());
    }
  }
}

TEST(Parser, FilesThatCannotBeRead) {
  EXPECT_NE(faults_of(parse_deck("/nonexistent/deck.toml", {}, 0)).find("No such file"), std::string::npos);
  EXPECT_NE(faults_of(parse_deck("/", {}, 0)).find("folder"), std::string::npos);
}

TEST(Parser, RequireDeckListsEveryFault) {
  try {
    require_deck(parse_small({"run.steps=0", "zero.stge=1"}));
    FAIL() << "a deck with faults was accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code, ExitCode::usage);
    std::string what = e.what();
    EXPECT_NE(what.find("2 faults"), std::string::npos) << what;
    EXPECT_NE(what.find("run.steps"), std::string::npos) << what;
    EXPECT_NE(what.find("zero.stage"), std::string::npos) << what;
  }
  EXPECT_EQ(require_deck(parse_small()).run.steps, 100);
}

}  // namespace
}  // namespace tessera::parser_test
