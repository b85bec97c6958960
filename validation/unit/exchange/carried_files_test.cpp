// What goes along with a model: from its folder through an import and a run into an export.
#include "exchange/carried_files.hpp"

#include "base/json.hpp"

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "exchange/consolidate.hpp"
#include "exchange/import_model.hpp"

namespace tessera::carried_files_test {
namespace {

using namespace tessera::test;
/// A whole model of transformers in a folder, whose config.json has other keys too; null: not that one.
void make_model(const std::string& folder, const Json& keys) {
  consolidate({.checkpoint = write_sharded(folder + ".run", tiny_deck(), 1), .output = folder});
  Json config = Json::parse(slurp(folder + "/config.json"));
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) config.erase(key);
  config.update(keys);
  spill(folder + "/config.json", config.dump());
  fs::remove(folder + "/generation_config.json");
}

/// Through `tessera import`, a run that begins with that, and an export of it.
std::string through(const std::string& model, const std::string& folder) {
  import_model({.model = model, .run = folder + "/imported", .overrides = {}});
  Deck deck = tiny_deck();
  keep_files(find_tokenizer(deck, folder + "/run", folder + "/imported/checkpoints/latest"), folder + "/run");
  fs::create_directories(folder + "/run/checkpoints");
  fs::copy(folder + "/imported/checkpoints/step-00000000", folder + "/run/checkpoints/step-00000000", fs::copy_options::recursive);
  consolidate({.checkpoint = folder + "/run/checkpoints/step-00000000", .output = folder + "/out"});
  return folder + "/out";
}

TEST(CarriedFiles, IdsOfTokensWithoutATokenizer) {
  for (const Json& ids :
       {Json{{"bos_token_id", 1}, {"eos_token_id", 2}}, Json{{"bos_token_id", nullptr}, {"eos_token_id", {2, 5, 7}}, {"pad_token_id", 0}},
        Json{{"eos_token_id", 3}, {"pad_token_id", -1}}, Json::object()}) {
    const Scratch dir;
    make_model(dir / "model", ids);
    const std::string out = through(dir / "model", dir.path());
    const Json config = Json::parse(slurp(out + "/config.json"));
    for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
      EXPECT_EQ(config.value(key, Json("none")), ids.value(key, Json("none"))) << key << " of " << ids.dump();
    EXPECT_EQ(Json::parse(slurp(out + "/generation_config.json")), ids) << "what transformers makes of such a config.json";
  }
}

TEST(CarriedFiles, EachFileComesOutAsItWentIn) {
  const std::vector<std::string> all = {"added_tokens.json",
                                        "additional_chat_templates/rag.jinja",
                                        "additional_chat_templates/tools.jinja",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "generation_config.json",
                                        "merges.txt",
                                        "sentencepiece.bpe.model",
                                        "special_tokens_map.json",
                                        "spiece.model",
                                        "tekken.json",
                                        "tokenizer.json",
                                        "tokenizer.model",
                                        "tokenizer.model.v3",
                                        "tokenizer_config.json",
                                        "vocab.json",
                                        "vocab.txt"};
  for (const bool with_tokenizer : {true, false}) {
    const Scratch dir;
    make_model(dir / "model", {{"eos_token_id", 2}});
    fs::create_directories(dir / "model/additional_chat_templates");
    for (const std::string& name : all)
      if (with_tokenizer || name != "tokenizer.json") spill(dir / ("model/" + name), "{\"the text of\": \"" + name + "\"}");
    for (const char* other : {"README.md", "onnx.bin", ".gitattributes", "additional_chat_templates/notes.txt"})
      spill(dir / ("model/" + std::string(other)), "x");
    testing::internal::CaptureStderr();
    const std::string out = through(dir / "model", dir.path()), log = testing::internal::GetCapturedStderr();
    for (const std::string& name : all)
      EXPECT_EQ(slurp(out + "/" + name), slurp(dir / ("model/" + name))) << name;  // "" where there is none
    EXPECT_FALSE(fs::exists(out + "/README.md"));
    const std::string says = "not copied to the run and its exports: README.md, onnx.bin, additional_chat_templates/notes.txt\n";
    EXPECT_HAS(log, says);
    EXPECT_EQ(log.find(says), log.rfind(says)) << "once: " << log;
    // The same command again, over its own files; beside another it is refused.
    consolidate({.checkpoint = dir / "run/checkpoints/step-00000000", .output = out});
    spill(out + "/additional_chat_templates/other.jinja", "");
    EXPECT_HAS(error_of(ExitCode::usage, [&] { consolidate({.checkpoint = dir / "run/checkpoints/step-00000000", .output = out}); }),
               "holds additional_chat_templates/other.jinja, which does not belong to this export");
  }
}

TEST(CarriedFiles, OfAModelBesideATokenizerOfAnotherFolder) {
  const Scratch dir;
  make_model(dir / "model", {{"eos_token_id", 2}});
  fs::create_directories(dir / "tokenizer");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) spill(dir / ("tokenizer/" + std::string(name)), "{}");
  spill(dir / "model/special_tokens_map.json", "{}");
  Deck deck = tiny_deck();
  deck.run.init = dir / "model", deck.data.tokenizer = dir / "tokenizer";
  keep_files(find_tokenizer(deck, dir / "run", ""), dir / "run");
  EXPECT_EQ(slurp(dir / "run/tokenizer/config.json"), slurp(dir / "model/config.json"));
  EXPECT_EQ(carried_files(dir / "run/tokenizer"), (std::vector<std::string>{"tokenizer_config.json", "tokenizer.json"}));
  EXPECT_EQ(carried_ids(dir / "run/tokenizer"), (TokenIds{{"eos_token_id", "2"}}));
  EXPECT_TRUE(carried_files("").empty());
  EXPECT_FALSE(carried_ids(dir / "tokenizer"));
}

TEST(CarriedFiles, WhatIsNoIdIsRefused) {
  const Scratch dir;
  for (const char* wrong :
       {"{\"eos_token_id\": \"</s>\"}", "{\"bos_token_id\": [1, null]}", "{\"pad_token_id\": true}", "{\"eos_token_id\": 2.0}", "{"}) {
    spill(dir / "config.json", wrong);
    EXPECT_HAS(error_of(ExitCode::data, [&] { carried_ids(dir.path()); }), dir / "config.json") << wrong;
  }
}

}  // namespace
}  // namespace tessera::carried_files_test
