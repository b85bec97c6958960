// Which files of a folder a tokenizer's digest covers: what changes tokens changes it, and nothing else does.
#include "io/tokenizer/tokenizer_digest.hpp"

#include "../scratch.hpp"
#include "io/tokenizer/tokenizer_class.hpp"

namespace tessera::io::test::tokenizer_digest_test {
using namespace tessera::test;
namespace {

constexpr const char* of_pieces =
    R"({"added_tokens": [{"id": 0, "content": "<unk>", "special": true}, {"id": 1, "content": "<s>", "special": true},
  {"id": 2, "content": "</s>", "special": true}], "pre_tokenizer": null, "model": {"vocab": {"type": 7, "a\"}{": 8}, "type": "BPE", "merges": []}})";

class TokenizerDigest : public ::testing::Test {
 protected:
  std::string digest(const std::string& config, const std::string& model = "", const std::string& tokenizer = of_pieces) {
    spill(dir / "tokenizer.json", tokenizer), spill(dir / "tokenizer_config.json", config);
    model.empty() ? void(fs::remove(dir / "config.json")) : spill(dir / "config.json", model);
    return tokenizer_digest(dir / "");
  }
  Scratch dir;
};

TEST_F(TokenizerDigest, CoversWhatAClassIsBuiltBy) {
  const std::string usual = digest(R"({"tokenizer_class": "LlamaTokenizer"})");
  EXPECT_TRUE(is_tokenizer_digest(usual));
  EXPECT_EQ(digest(R"({"tokenizer_class": "LlamaTokenizerFast", "add_prefix_space": true, "legacy": false})"), usual);
  EXPECT_NE(digest(R"({"tokenizer_class": "LlamaTokenizer", "add_prefix_space": false})"), usual);
  EXPECT_NE(digest(R"({"tokenizer_class": "LlamaTokenizer", "legacy": true})"), usual);
  EXPECT_NE(digest(R"({"tokenizer_class": "PreTrainedTokenizerFast"})"), usual);
  EXPECT_NE(digest(R"({"tokenizer_class": "LlamaTokenizer", "split_special_tokens": true})"), usual);
  EXPECT_EQ(digest(R"({"tokenizer_class": "LlamaTokenizer"})", R"({"model_type": "llama"})"), usual);
  EXPECT_NE(digest(R"({"tokenizer_class": "LlamaTokenizer"})", R"({"model_type": "phi3"})"), usual) << "whose file stands as it is";
  EXPECT_EQ(digest("{}", R"({"tokenizer_class": "LlamaTokenizer"})"), usual);
  const std::string stands = digest(R"({"tokenizer_class": "PreTrainedTokenizerFast"})");
  EXPECT_EQ(digest(R"({"tokenizer_class": "PreTrainedTokenizerFast", "add_prefix_space": false, "legacy": true})"), stands)
      << "nothing reads them";
  EXPECT_EQ(digest("{}"), stands);
}

TEST_F(TokenizerDigest, CoversTokensThatTokenizerJsonLacks) {
  const std::string usual = digest("{}");
  EXPECT_EQ(digest(R"({"pad_token": "</s>", "eos_token": {"content": "</s>"}, "unk_token": null})"), usual) << "known tokens";
  EXPECT_NE(digest(R"({"pad_token": "<pad>"})"), usual);
  EXPECT_NE(digest(R"({"additional_special_tokens": ["<turn>"]})"), usual);
  EXPECT_NE(digest(R"({"additional_special_tokens": ["<turn>", "<end>"]})"),
            digest(R"({"additional_special_tokens": ["<end>", "<turn>"]})"))
      << "their numbers";
  const std::string same = R"({"added_tokens_decoder": {"1": {"content": "<s>", "special": true}}})";
  EXPECT_EQ(digest(same), usual);
  EXPECT_NE(digest(R"({"added_tokens_decoder": {"1": {"content": "<s>", "special": true, "lstrip": true}}})"), usual);
  spill(dir / "special_tokens_map.json", R"({"pad_token": "<pad>"})");
  EXPECT_EQ(digest("{}"), digest(R"({"pad_token": "<pad>"})"));
  EXPECT_EQ(digest(same), usual) << "a list of added tokens counts alone";
}

TEST_F(TokenizerDigest, LeavesOutWhatChangesNoToken) {
  EXPECT_EQ(digest(R"({"chat_template": "x", "model_max_length": 7, "add_bos_token": true, "padding_side": "left"})"), digest("{}"));
}

TEST_F(TokenizerDigest, AnUnreadableFileIsADigestOfItsOwn) {
  EXPECT_NE(digest("{"), digest("{}"));
  EXPECT_NE(digest("{"), digest("[1"));
  EXPECT_TRUE(is_tokenizer_digest(digest("{}", "", "no JSON")));
}

TEST_F(TokenizerDigest, OneOfAnEarlierVersionIsComparedInTokenizerJsonAlone) {
  const std::string now = digest("{}"), changed = digest(R"({"pad_token": "<pad>"})"), before = now.substr(0, 32), other(32, 'a');
  EXPECT_TRUE(is_tokenizer_digest(before));
  EXPECT_FALSE(is_tokenizer_digest(now.substr(0, 40)));
  EXPECT_TRUE(may_be_same_tokenizer(before, now));
  EXPECT_TRUE(may_be_same_tokenizer(now, before));
  EXPECT_FALSE(may_be_same_tokenizer(now, changed));
  EXPECT_FALSE(may_be_same_tokenizer(other, now));
  EXPECT_HAS(settings_differ(now, changed), "tokenizer_config.json");
  EXPECT_EQ(settings_differ(now, other), "");
}

TEST(MemberText, IsOfTheObjectItselfAndTheLast) {
  EXPECT_EQ(member_text(R"({"a": {"b": 1}, "b" : [2, "b", {"b": 3}], "c": 4})", "b"), R"( [2, "b", {"b": 3}])");
  EXPECT_EQ(member_text(R"({"b": 1, "x": "b", "b": "}\","})", "b"), R"( "}\",")");
  for (const char* none : {"", "{", "[\"b\", 1]", "{\"b", "{\"a\": \"\\", "7"}) EXPECT_EQ(member_text(none, "b"), "");
}

}  // namespace
}  // namespace tessera::io::test::tokenizer_digest_test
