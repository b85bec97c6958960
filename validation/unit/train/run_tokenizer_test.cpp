// Which tokenizer a run has, what token files it takes, and what goes along with it.
#include "train/data/run_tokenizer.hpp"

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "exchange/carried_files.hpp"
#include "io/tokenizer/tokenizer.hpp"
#include "io/tokens/token_writer.hpp"

namespace tessera::run_tokenizer_test {
namespace {

using namespace tessera::test;

void make_tokenizer(const std::string& folder, const std::string& text) {
  fs::create_directories(folder);
  spill(folder + "/tokenizer.json", text);
  spill(folder + "/tokenizer_config.json", "{}");
  spill(folder + "/config.json", "{\"eos_token_id\": 1}");
}

std::string token_file(const std::string& path, const io::TokenKind& kind) {
  io::TokenWriter writer(path, 100, 1, false, kind);
  writer.begin_document();
  for (std::uint32_t i = 0; i < 100; ++i) writer.add(i % 50);
  writer.close(), writer.commit();
  return path;
}

Deck deck_with(const std::string& init) {
  Deck deck = test::tiny_deck();
  deck.run.init = init;
  return deck;
}

TEST(RunTokenizer, IsTheModelsAndStaysInTheRunsFolder) {
  const Scratch dir;
  make_tokenizer(dir / "model", "one"), make_tokenizer(dir / "other", "two");
  EXPECT_EQ(find_tokenizer(deck_with(""), dir / "run", "").folder, "");
  const RunTokenizer of_model = find_tokenizer(deck_with(dir / "model"), dir / "run", "");
  EXPECT_EQ(of_model.folder, dir / "model");
  EXPECT_EQ(of_model.digest, io::tokenizer_digest(dir / "model"));
  keep_files(of_model, dir / "run");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "config.json"})
    EXPECT_EQ(slurp(dir / "run/tokenizer/" + name), slurp(dir / "model/" + name));
  EXPECT_EQ(find_tokenizer(deck_with(dir / "model"), dir / "run", "").folder, dir / "model");
  EXPECT_EQ(find_tokenizer(deck_with(dir / "gone"), dir / "run", "").folder, dir / "run/tokenizer") << "a resume needs the model no more";
  const std::string why = error_of(ExitCode::usage, [&] { find_tokenizer(deck_with(dir / "other"), dir / "run", ""); });
  EXPECT_HAS(why, "other/tokenizer.json (digest " + io::first_digits(io::tokenizer_digest(dir / "other")) + ") differs from ");
  EXPECT_HAS(why, io::first_digits(io::tokenizer_digest(dir / "model")));
  EXPECT_EQ(find_tokenizer(deck_with(dir / "other"), "", "").folder, dir / "other") << "an earlier run is moved aside";
}

TEST(RunTokenizer, ComesFromTheRunOfTheCheckpoint) {
  const Scratch dir;
  make_tokenizer(dir / "run/tokenizer", "one");
  fs::create_directories(dir / "run/checkpoints/step-00000001");
  fs::create_directory_symlink("step-00000001", dir / "run/checkpoints/latest");
  EXPECT_EQ(tokenizer_folder(dir / "run/checkpoints/latest"), fs::canonical(dir / "run/tokenizer").string());
  EXPECT_EQ(tokenizer_folder(dir / "run/checkpoints/latest/"), fs::canonical(dir / "run/tokenizer").string());
  EXPECT_EQ(tokenizer_folder(dir / "next/checkpoints/latest"), "");
  EXPECT_EQ(find_tokenizer(deck_with(""), dir / "next", dir / "run/checkpoints/latest").digest,
            io::tokenizer_digest(dir / "run/tokenizer"));
}

TEST(RunTokenizer, IsTheOneThatTheDeckNames) {
  const Scratch dir;
  make_tokenizer(dir / "model", "one"), make_tokenizer(dir / "other", "two");
  const std::string one = io::tokenizer_digest(dir / "model"), two = io::tokenizer_digest(dir / "other");
  Deck deck = deck_with("");
  deck.data.tokenizer = dir / "model";
  EXPECT_EQ(find_tokenizer(deck, dir / "run", "").folder, dir / "model");
  keep_files(find_tokenizer(deck, dir / "run", ""), dir / "run");
  EXPECT_EQ(slurp(dir / "run/tokenizer/tokenizer.json"), "one");
  deck.data.tokenizer = one;
  EXPECT_EQ(find_tokenizer(deck, dir / "run", "").folder, dir / "run/tokenizer") << "a digest goes with a folder of it";
  const RunTokenizer alone = find_tokenizer(deck, dir / "new", "");
  EXPECT_EQ(alone.folder, "");
  EXPECT_EQ(alone.digest, one);
  keep_files(alone, dir / "new");
  EXPECT_FALSE(fs::exists(dir / "new/tokenizer")) << "there is nothing to keep";
  deck.data.tokenizer = two;
  const std::string why = error_of(ExitCode::usage, [&] { find_tokenizer(deck, dir / "run", ""); });
  EXPECT_HAS(why, "run/tokenizer/tokenizer.json (digest " + io::first_digits(one) + ") differs from data.tokenizer (" + two.substr(0, 8));
  deck.data.tokenizer = dir / "other";
  EXPECT_HAS(error_of(ExitCode::usage, [&] { find_tokenizer(deck, dir / "run", ""); }), " differs from ");
  for (const std::string& neither : {dir / "gone", one.substr(1), std::string("byte")}) {
    deck.data.tokenizer = neither;
    EXPECT_HAS(error_of(ExitCode::usage, [&] { find_tokenizer(deck, dir / "run", ""); }), "data.tokenizer: " + neither);
  }
}

TEST(RunTokenizer, KeepsTheChatTemplateThatTheDeckNames) {
  const Scratch dir;
  make_tokenizer(dir / "model", "one");
  spill(dir / "model/chat_template.jinja", "the model's"), spill(dir / "own.jinja", "our own");
  const auto keep = [&](const std::string& named) {
    Deck deck = deck_with("");
    deck.data.tokenizer = dir / "model", deck.data.chat_template = named;
    keep_files(find_tokenizer(deck, dir / "run", ""), dir / "run");
    return slurp(dir / "run/tokenizer/chat_template.jinja");
  };
  EXPECT_EQ(keep(""), "the model's");
  EXPECT_EQ(keep(dir / "own.jinja"), "our own");
  EXPECT_EQ(keep(""), "our own") << "what the run keeps";
  EXPECT_HAS(keep("chatml"), "<|im_start|>");
  EXPECT_HAS(error_of(ExitCode::usage, [&] { keep("chatlm"); }), "chatlm is neither a file nor one of chatml, llama3, alpaca, plain");
  Deck bare = deck_with("");
  bare.data.chat_template = "chatml";
  EXPECT_HAS(error_of(ExitCode::usage, [&] { find_tokenizer(bare, "", ""); }), "data.chat_template: the run has no tokenizer");
}

TEST(RunTokenizer, ADigestAloneRefusesTokensOfAnother) {
  const Scratch dir;
  Deck deck = deck_with("");
  deck.data.tokenizer = std::string(32, 'b');
  const RunTokenizer tokenizer = find_tokenizer(deck, dir / "run", "");
  const auto file = [&](const io::TokenKind& kind) { return SampleFile(token_file(dir / "a.h5", kind), 8, 300); };
  require_tokenizer(tokenizer, file({.tokenizer = "this", .digest = std::string(32, 'b'), .vocab = 300, .end_token = 1}));
  require_tokenizer(tokenizer, file({.tokenizer = "of others", .vocab = 300}));
  EXPECT_HAS(
      error_of(
          ExitCode::data,
          [&] { require_tokenizer(tokenizer, file({.tokenizer = "big", .digest = std::string(32, 'a'), .vocab = 300, .end_token = 1})); }),
      "a.h5 holds tokens of another tokenizer (big, digest aaaaaaaa) than data.tokenizer (digest bbbbbbbb)");
  EXPECT_HAS(error_of(ExitCode::data, [&] { require_tokenizer(tokenizer, file({})); }), "a.h5 holds bytes");
}

/// tokenizer_config.json changes tokens where its class builds a tokenizer.
TEST(RunTokenizer, RefusesAChangeBesideTokenizerJson) {
  const Scratch dir;
  make_tokenizer(dir / "model", R"({"model": {"type": "BPE"}})");
  const auto configure = [&](const std::string& folder, const std::string& more) {
    spill(folder + "/tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"" + more + "}");
  };
  configure(dir / "model", "");
  const RunTokenizer before = find_tokenizer(deck_with(dir / "model"), dir / "run", "");
  const SampleFile file(token_file(dir / "a.h5", {.tokenizer = "m", .digest = before.digest, .vocab = 300, .end_token = 1}), 8, 300);
  const SampleFile old(token_file(dir / "b.h5", {.tokenizer = "m", .digest = before.digest.substr(0, 32), .vocab = 300, .end_token = 1}), 8,
                       300);
  keep_files(before, dir / "run");
  require_tokenizer(before, file);
  configure(dir / "model", ", \"chat_template\": \"x\"");
  EXPECT_EQ(find_tokenizer(deck_with(dir / "model"), dir / "run", "").digest, before.digest) << "no token depends on it";
  configure(dir / "model", ", \"add_prefix_space\": false");
  const char* settings = "tokenizer.json is the same; what differs is in tokenizer_config.json";
  const std::string run = error_of(ExitCode::usage, [&] { find_tokenizer(deck_with(dir / "model"), dir / "run", ""); });
  EXPECT_HAS(run, "differs from");
  EXPECT_HAS(run, settings);
  const RunTokenizer changed = find_tokenizer(deck_with(dir / "model"), "", "");
  const std::string data = error_of(ExitCode::data, [&] { require_tokenizer(changed, file); });
  EXPECT_HAS(data, "a.h5 holds tokens of another tokenizer");
  EXPECT_HAS(data, settings);
  EXPECT_HAS(error_of(ExitCode::data,
                      [&] {
                        require_same_tokenizer(
                            file,
                            SampleFile(token_file(dir / "c.h5", {.tokenizer = "m", .digest = changed.digest, .vocab = 300, .end_token = 1}),
                                       8, 300));
                      }),
             "a run has one tokenizer");
  // One that an earlier version wrote has no word on these files.
  require_tokenizer(changed, old), require_same_tokenizer(file, old);
  Deck named = deck_with("");
  named.data.tokenizer = before.digest.substr(0, 32);
  EXPECT_EQ(find_tokenizer(named, dir / "run", "").digest, before.digest) << "the fuller of two that agree";
}

TEST(RunTokenizer, RefusesTokensOfAnother) {
  const Scratch dir;
  make_tokenizer(dir / "model", "one");
  const RunTokenizer tokenizer = find_tokenizer(deck_with(dir / "model"), dir / "run", "");
  const auto file = [&](const io::TokenKind& kind) { return SampleFile(token_file(dir / "a.h5", kind), 8, 300); };
  require_tokenizer(tokenizer, file({.tokenizer = "model", .digest = tokenizer.digest, .vocab = 300, .end_token = 1}));
  require_tokenizer(tokenizer, file({.tokenizer = "of others", .vocab = 300}));
  require_tokenizer({}, file({}));
  const std::string digest(32, 'a');
  const std::string why = error_of(
      ExitCode::data, [&] { require_tokenizer(tokenizer, file({.tokenizer = "big", .digest = digest, .vocab = 300, .end_token = 1})); });
  EXPECT_HAS(why, "a.h5 holds tokens of another tokenizer (big, digest aaaaaaaa) than");
  EXPECT_HAS(why, tokenizer.digest.substr(0, 8));
  EXPECT_HAS(error_of(ExitCode::data, [&] { require_tokenizer(tokenizer, file({})); }), "a.h5 holds bytes, but this run's model has");
}

}  // namespace
}  // namespace tessera::run_tokenizer_test
