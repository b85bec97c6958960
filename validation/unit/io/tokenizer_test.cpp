// The tokenizer of a model, with a stand-in for the package that reads it (validation/tokenizers/fake): what is asked and answered, and how
// workers fail. Tokens themselves are held against the package in validation/tokenizers.
#include "io/tokenizer/tokenizer.hpp"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <algorithm>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <numeric>
#include <thread>

#include "../scratch.hpp"
#include "base/check.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokenizer/child.hpp"
#include "io/tokenizer/worker.hpp"
#include "io/tokens/documents.hpp"
#include "io/tokens/loss_mask.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io::test::tokenizer_test {
using namespace tessera::test;
namespace {

constexpr std::int32_t end_id = 0x110000, begin_id = 0x110001;
constexpr const char* fake_tokenizer = R"({"added": {"<end>": 1114112, "<begin>": 1114113}, "prefix": ["<begin>"]})";

class ModelTokenizer : public ::testing::Test {
 protected:
  void SetUp() override {
    setenv("PYTHONPATH", TESSERA_FAKE_TOKENIZERS, 1);
    make_model("model", fake_tokenizer, R"({"eos_token": "<end>"})");
  }
  void make_model(const std::string& name, const std::string& tokenizer, const std::string& config) {
    fs::create_directories(dir / name);
    spill(dir / name + "/tokenizer.json", tokenizer);
    if (!config.empty()) spill(dir / name + "/tokenizer_config.json", config);
  }
  TokenizeOptions options(const std::string& input) const {
    return {.tokenizer = dir / "model", .inputs = {dir / input}, .output_dir = dir / "out", .workers = 2};
  }
  Scratch dir;
};

using Ids = std::vector<std::vector<std::int32_t>>;
#define EXPECT_ERROR(call, code, part) EXPECT_HAS(error_of(code, [&] { call; }), std::string(part))

/// Ids of a file, documents as they begin.
Ids documents_of(const std::string& path) {
  const TokenFile file(path);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(file.tokens()));
  file.read(0, ids, file.declared_vocab());
  auto starts_set = hdf5::File::open(path, ExitCode::data).open_dataset("documents");
  std::vector<std::int64_t> starts(static_cast<std::size_t>(starts_set.elements()));
  starts_set.read<std::int64_t>(0, starts);
  starts.push_back(file.tokens());
  Ids all;
  for (std::size_t i = 0; i + 1 < starts.size(); ++i) all.emplace_back(ids.begin() + starts[i], ids.begin() + starts[i + 1]);
  return all;
}

std::vector<std::int32_t> framed(const std::u32string& text) {
  std::vector<std::int32_t> ids{begin_id};
  for (char32_t c : text) ids.push_back(static_cast<std::int32_t>(c));
  ids.push_back(end_id);
  return ids;
}

TEST_F(ModelTokenizer, OneIsLearntFromTheTextThatItThenTokenizes) {
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += fmt::format("{{\"text\": \"{} \\u20ac\"}}\n", i);
  spill(dir / "a.jsonl", lines);
  TokenizeOptions o = options("a.jsonl");
  o.tokenizer = "byte", o.train_bpe = 300;
  const TokenizeResult result = tokenize(o);
  EXPECT_EQ(result.tokenizer, "tokenizer");
  EXPECT_EQ(result.digest, tokenizer_digest(dir / "out/tokenizer"));
  const std::string learnt = slurp(dir / "out/tokenizer/tokenizer.json");
  EXPECT_HAS(learnt, std::string("\"vocab\": 300"));
  EXPECT_HAS(learnt, std::string("\"<|endoftext|>\": 1114112"));
  EXPECT_HAS(learnt, std::string("[\"0 \\u20ac\", \"1 \\u20ac\", ")) << "each document is a text of its own";
  EXPECT_EQ(documents_of(dir / "out/train.h5").size(), 40u);
  EXPECT_EQ(documents_of(dir / "out/train.h5").at(7), (std::vector<std::int32_t>{'7', ' ', 0x20ac, end_id}));
  // A long text is cut before a blank.
  std::string text;
  while (text.size() < (3 << 20)) text += "words of a long text \u20ac ";
  spill(dir / "long.txt", text);
  o.inputs = {dir / "long.txt"}, o.end_token = "<end>";
  tokenize(o);
  const std::string again = slurp(dir / "out/tokenizer/tokenizer.json");
  EXPECT_HAS(again, std::string("\"<end>\": 1114112"));
  EXPECT_HAS(again, std::string("\", \" "));
}

TEST_F(ModelTokenizer, LearningIsRefusedBesideWhatItContradicts) {
  spill(dir / "a.txt", "text");
  TokenizeOptions o = options("a.txt");
  o.train_bpe = 300;
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "--train-bpe makes a tokenizer, but --tokenizer");
  o.tokenizer = "byte", o.train_bpe = 256;
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "--train-bpe 256: the bytes and the end of a document alone are 257 tokens");
  o.train_bpe = 300, o.chat = true;
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "--train-bpe makes a tokenizer without one");
  o.chat = false, o.python = "no-such-python";
  EXPECT_ERROR(tokenize(o), ExitCode::environment, "no-such-python");
  EXPECT_FALSE(fs::exists(dir / "out/tokenizer"));
}

TEST_F(ModelTokenizer, LinesBecomeDocumentsInTheirOrder) {
  std::string lines;
  Ids wanted;
  for (int i = 0; i < 3000; ++i) {  // several batches
    lines += fmt::format("{{\"text\": \"{} \\u20ac\\ud83d\\ude00 {}\"}}\n", i, std::string(static_cast<std::size_t>(i % 700), 'x'));
    std::u32string text;
    for (char c : std::to_string(i)) text += static_cast<char32_t>(c);
    wanted.push_back(framed(text + U" \u20ac\U0001f600 " + std::u32string(static_cast<std::size_t>(i % 700), U'x')));
  }
  spill(dir / "a.jsonl", lines);
  TokenizeOptions o = options("a.jsonl");
  const TokenizeResult result = tokenize(o);
  EXPECT_EQ(result.documents, 3000);
  EXPECT_EQ(result.vocab, 0x110002);
  EXPECT_EQ(documents_of(dir / "out/train.h5"), wanted);
  const TokenFile file(dir / "out/train.h5");
  EXPECT_EQ(file.token_bytes(), 4u);
  EXPECT_EQ(file.tokenizer(), "model");
  EXPECT_EQ(file.tokenizer_digest(), tokenizer_digest(dir / "model"));
  EXPECT_EQ(file.end_token(), end_id);
  EXPECT_FALSE(file.masked());
  o.output_dir = dir / "alone", o.workers = 1;
  tokenize(o);
  EXPECT_EQ(TokenFile(dir / "alone/train.h5").facts()->text(), file.facts()->text());
}

TEST_F(ModelTokenizer, ATextIsOneDocumentHoweverItIsCut) {
  std::string text;
  std::u32string wide;
  for (int i = 0; text.size() < (3u << 20); ++i) {
    text += fmt::format("line {}\n", i) + (i % 5 == 0 ? "\n  " : "");
  }
  for (char c : text) wide += static_cast<char32_t>(c);
  spill(dir / "a.txt", text);
  tokenize(options("a.txt"));
  EXPECT_EQ(documents_of(dir / "out/train.h5"), Ids{framed(wide)});
}

TEST_F(ModelTokenizer, CutsLieBetweenLinesThatAreNotBlank) {
  EXPECT_EQ(last_cut("a\nb"), 2u);
  EXPECT_EQ(last_cut("a\nb\nc"), 4u);
  EXPECT_EQ(last_cut("a\nb\n\nc"), 2u);
  EXPECT_EQ(last_cut("a\nb\n c"), 2u);
  EXPECT_EQ(last_cut("a\nb \nc"), 2u);
  EXPECT_EQ(last_cut("a\n\xc2\xa0"
                     "c"),
            0u);                                // a blank of two bytes
  EXPECT_EQ(last_cut("a\xe3\x80\x80\nc"), 0u);  // and of three
  EXPECT_EQ(last_cut("\xe4\xb8\xad\n\xe4\xb8\xad"), 4u);
  EXPECT_EQ(last_cut("\nab\n"), 0u);
  EXPECT_EQ(last_cut(""), 0u);
}

TEST_F(ModelTokenizer, TheTailOfOneTextIsForValidation) {
  spill(dir / "a.txt", "0123456789");
  TokenizeOptions o = options("a.txt");
  o.validation = 0.3;
  tokenize(o);
  EXPECT_EQ(documents_of(dir / "out/train.h5"), Ids{framed(U"0123456")});
  EXPECT_EQ(documents_of(dir / "out/val.h5"), Ids{framed(U"789")});
}

TEST_F(ModelTokenizer, CompletionsAndTheirEndCount) {
  spill(dir / "a.jsonl", R"({"prompt": "ab", "completion": "c"})"
                         "\n"
                         R"({"text": "de"})"
                         "\n");
  const TokenizeResult result = tokenize(options("a.jsonl"));
  EXPECT_EQ(documents_of(dir / "out/train.h5"), (Ids{framed(U"abc"), framed(U"de")}));
  auto bits = hdf5::File::open(dir / "out/train.h5", ExitCode::data).open_dataset("loss_mask");
  std::vector<std::uint8_t> mask(2);
  bits.read<std::uint8_t>(0, mask);
  std::string counted;
  for (std::int64_t i = 0; i < 9; ++i) counted += counts(mask, i) ? '1' : '0';
  EXPECT_EQ(counted, "000110111");  // begin a b c end, begin d e end
  EXPECT_EQ(result.train_counted, 5);
}

/// A template of the stand-in for jinja2: <role|content> of each message.
constexpr const char* fake_template =
    R"raw(''.join('<' + m['role'] + '|' + m['content'] + '>' for m in messages) + ('<assistant|' if add_generation_prompt else ''))raw";

TEST_F(ModelTokenizer, OnlyTheAssistantsTurnsCount) {
  spill(dir / "model/chat_template.jinja", fake_template);
  spill(
      dir / "a.jsonl",
      R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "ab"}, {"role": "user", "content": ""}, {"role": "assistant", "content": "c"}]})"
      "\n"
      R"({"instruction": "i", "input": "j", "output": "o"})"
      "\n"
      R"({"prompt": "p", "completion": "r"})"
      "\n");
  TokenizeOptions o = options("a.jsonl");
  o.chat = true;
  const TokenizeResult result = tokenize(o);
  std::string text, counted;
  auto bits = hdf5::File::open(dir / "out/train.h5", ExitCode::data).open_dataset("loss_mask");
  std::vector<std::uint8_t> mask(static_cast<std::size_t>(bits.elements()));
  bits.read<std::uint8_t>(0, mask);
  std::int64_t at = 0;
  for (const auto& document : documents_of(dir / "out/train.h5"))
    for (const std::int32_t id : document) {
      text += id == end_id ? '.' : static_cast<char>(id);
      counted += counts(mask, at++) ? '1' : '0';
    }
  EXPECT_EQ(text, "<user|q><assistant|ab><user|><assistant|c>.<user|i\n\nj><assistant|o>.<user|p><assistant|r>.");
  EXPECT_EQ(counted,
            "0000000000000000000111"
            "0000000"
            "00000000000"
            "11"
            "1"
            "000000"
            "00000"
            "00000000000"
            "11"
            "1"
            "00000000"
            "00000000000"
            "11"
            "1");
  EXPECT_EQ(result.train_counted, 3 + 3 + 3 + 3);
}

TEST_F(ModelTokenizer, TheEndCountsAfterATurnThatDoes) {
  spill(dir / "model/chat_template.jinja", fake_template);
  const std::string ask = R"({"role": "user", "content": "q"})", say = R"({"role": "assistant", "content": "a"})",
                    not_said = R"({"role": "assistant", "content": "b", "weight": 0})";
  Tokenizer tokenizer({.folder = dir / "model"});
  for (const auto& [last, counts] : {std::pair{say, true}, std::pair{ask, false}, std::pair{not_said, false}}) {
    std::vector<std::string> unused;
    const std::string line = fmt::format(R"({{"messages": [{}, {}, {}]}})", ask, say, last);
    const Encoded encoded = tokenizer.encode_chats({{"here", line}}, {}, unused).at(0);
    EXPECT_EQ(encoded.ids.back(), static_cast<std::uint32_t>(end_id)) << line;
    EXPECT_EQ(encoded.counts.back(), counts) << line;
    EXPECT_EQ(std::ranges::count(encoded.counts, 1), counts ? 5 : 2) << line;  // a> of each, and the end
  }
}

TEST_F(ModelTokenizer, AConversationThatCannotBeUsedIsRefusedByItsLine) {
  spill(dir / "model/chat_template.jinja", fake_template);
  const auto refuse = [&](const std::string& line, const std::string& words) {
    spill(dir / "a.jsonl", R"({"prompt": "p", "completion": "r"})"
                           "\n\n" +
                               line + "\n");
    TokenizeOptions o = options("a.jsonl");
    o.chat = true;
    EXPECT_ERROR(tokenize(o), ExitCode::data, "a.jsonl:3: " + words);
  };
  refuse("{", "broken JSON at byte");
  refuse("[]", "the line is no JSON object");
  refuse(R"({"text": "a"})", "the object is not a conversation");
  refuse(R"({"messages": []})", "its messages are an empty list");
  refuse(R"({"messages": [{"role": "user", "content": "a"}, {"content": "b"}]})", "message 2 has no string \"role\"");
  refuse(R"({"messages": [{"role": "user"}]})", "message 1 has no string \"content\"");
  refuse(R"({"messages": [{"role": "user", "content": "a"}]})", "no message of the assistant, so there is nothing to learn");
  refuse(R"({"instruction": "a"})", "the object has no string \"output\"");
}

TEST_F(ModelTokenizer, ConversationsOfSeveralInputsNameTheirPlace) {
  spill(dir / "model/chat_template.jinja", fake_template);
  const std::string good = R"({"turns": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "messages": 1, "id": 3})"
                           "\n";
  spill(dir / "a.jsonl", good + good);
  spill(dir / "b.jsonl", good);
  TokenizeOptions o = options("a.jsonl");
  o.inputs.push_back(dir / "b.jsonl");
  o.chat = true, o.field = "turns";
  const TokenizeResult result = tokenize(o);
  EXPECT_EQ(result.documents, 3);
  EXPECT_EQ(result.unused, std::vector<std::string>{"id"});
  spill(dir / "b.jsonl", good + R"({"messages": []})");
  EXPECT_ERROR(tokenize(o), ExitCode::data, "b.jsonl:2: the object has no \"turns\", which --field names");
  spill(dir / "b.jsonl", R"({"turns": "q"})");
  EXPECT_ERROR(tokenize(o), ExitCode::data, "b.jsonl:1: \"turns\" is \"q\", but must be a list");
}

TEST_F(ModelTokenizer, ATemplateThatFailsIsNamed) {
  spill(dir / "a.jsonl", R"({"prompt": "p", "completion": "r"})");
  TokenizeOptions o = options("a.jsonl");
  o.chat = true;
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "the model has no chat template");
  spill(dir / "model/chat_template.jinja", "raise_exception('alternate!')");
  EXPECT_ERROR(tokenize(o), ExitCode::data, "model fails: TemplateError: alternate!");
  spill(dir / "model/chat_template.jinja", "messages[0]['name']");
  EXPECT_ERROR(tokenize(o), ExitCode::data, "a.jsonl:1: the chat template of");
  spill(dir / "model/chat_template.jinja", "((");
  EXPECT_ERROR(tokenize(o), ExitCode::data, "cannot be read");
  spill(dir / "model/chat_template.jinja", "str(len(messages)) + ''.join(m['content'] for m in messages)");
  EXPECT_ERROR(tokenize(o), ExitCode::data, "a.jsonl:1: the chat template of");
  o.tokenizer = "byte";
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "--chat renders conversations with a model's template, but the byte tokenizer has none");
}

TEST_F(ModelTokenizer, TheEndTokenIsTheModels) {
  const auto end_of = [&](const std::string& model, const std::string& named = "") {
    return Tokenizer({.python = "python3", .folder = dir / model, .end_token = named}).facts();
  };
  EXPECT_EQ(end_of("model").end, end_id);
  EXPECT_EQ(end_of("model", "<begin>").end, begin_id);
  EXPECT_ERROR(end_of("model", "<other>"), ExitCode::usage, "--end-token names the end token '<other>', which is not a token of");
  make_model("object", fake_tokenizer, R"({"eos_token": {"content": "<begin>", "lstrip": false}})");
  EXPECT_EQ(end_of("object").end, begin_id);
  make_model("bare", fake_tokenizer, "");
  EXPECT_ERROR(end_of("bare"), ExitCode::usage, "the token that ends a document is not clear");
  spill(dir / "bare/config.json", R"({"eos_token_id": 1114112})");
  EXPECT_EQ(end_of("bare").end, end_id);
  spill(dir / "bare/generation_config.json", R"({"eos_token_id": [1114113]})");
  EXPECT_EQ(end_of("bare").end, begin_id);
  EXPECT_EQ(end_of("bare").stops, (std::vector<std::int32_t>{end_id, begin_id}));
  spill(dir / "bare/generation_config.json", R"({"eos_token_id": [1114113, 1114112]})");
  EXPECT_EQ(end_of("bare").end, end_id) << "of several none is taken";
  for (const char* nothing : {"{}", R"({"eos_token_id": null, "bos_token_id": null})", R"({"temperature": 0.6, "nobody_knows": [1]})"}) {
    spill(dir / "bare/generation_config.json", nothing);
    EXPECT_EQ(end_of("bare").stops, std::vector<std::int32_t>{end_id}) << nothing << ": that of config.json counts";
  }
  make_model("wrong", fake_tokenizer, R"({"eos_token": "</s>"})");
  EXPECT_ERROR(end_of("wrong"), ExitCode::usage, "tokenizer_config.json names the end token '</s>', which is not a token of");
}

TEST_F(ModelTokenizer, AFileThatCannotBeReadIsNamed) {
  make_model("broken", "{", R"({"eos_token": "<end>"})");
  EXPECT_ERROR(Tokenizer({.folder = dir / "broken"}), ExitCode::data, "broken/tokenizer.json: the tokenizers package 0 cannot read it");
  make_model("config", fake_tokenizer, "[");
  EXPECT_ERROR(Tokenizer({.folder = dir / "config"}), ExitCode::data, "config/tokenizer_config.json: it cannot be read");
  EXPECT_ERROR(Tokenizer({.folder = dir / "none"}), ExitCode::data, "none/tokenizer.json");
  spill(dir / "a.txt", "text");
  TokenizeOptions o = options("a.txt");
  o.tokenizer = dir / "none";
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "none/tokenizer.json is missing. Give byte, or the folder of a Hugging Face model.");
  o.tokenizer = "byte", o.end_token = "<end>";
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "--end-token <end> works with the tokenizer of a model");
}

TEST_F(ModelTokenizer, FilesOfAnotherShapeAreNamed) {
  const auto refused = [&](const std::string& file, const std::string& text, const std::string& words) {
    fs::remove_all(dir / "odd");
    make_model("odd", fake_tokenizer, R"({"eos_token": "<end>"})");
    spill(dir / "odd/" + file, text);
    EXPECT_ERROR(Tokenizer({.folder = dir / "odd"}), ExitCode::data, "odd/" + file + ": " + words);
  };
  refused("tokenizer_config.json", "[]", "it is a list, but must be an object of JSON");
  refused("tokenizer_config.json", std::string(100000, '['), "it cannot be read: it is nested too deeply");
  refused("tokenizer_config.json", R"({"eos_token": 5})", "\"eos_token\" is 5, but must be the text of a token");
  refused("tokenizer_config.json", R"({"eos_token": "\ud800"})", "\"eos_token\" is \"\\ud800\", but must be");
  for (const char* ids : {"true", "1.0", "-1", "1099511627776", "[1114112, 4294967296]", "[[1]]", "NaN", "\"<end>\""})
    refused("config.json", fmt::format("{{\"eos_token_id\": {}}}", ids), "\"eos_token_id\" has ");
  refused("tokenizer.json", R"({"added": {}})", "its vocabulary is empty");
  refused("tokenizer.json", R"({"added": {"<end>": 4294967295}})", "its vocabulary goes to the number 4294967295");
  refused("tokenizer.json", R"({"added": {"<end>": 3}, "prefix": ["<end>"]})", "it has the number 97 for a text, and its tokens go to 3");
  refused("tokenizer.json", R"([1])", "the tokenizers package 0 cannot read it");
}

TEST_F(ModelTokenizer, APanicOfThePackageNamesTheFileAndTheText) {
  Tokenizer tokenizer({.folder = dir / "model"});
  const std::vector<DocumentPart> texts{{.begins = true, .ends = true, .pieces = {{"good"}}},
                                        {.begins = true, .ends = true, .pieces = {{"PANIC here"}}}};
  EXPECT_ERROR(tokenizer.encode(texts, false), ExitCode::data,
               "model/tokenizer.json: the tokenizers package 0 cannot tokenize 'PANIC here': index out of bounds.");
}

TEST_F(ModelTokenizer, TextsOfTheCommandLineMustBeUtf8) {
  spill(dir / "a.jsonl", R"({"prompt": "p", "completion": "r"})");
  TokenizeOptions o = options("a.jsonl");
  o.end_token = "\xff";
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "--end-token is not UTF-8");
  o.end_token = "", o.field = "\xff", o.chat = true;
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "--field is not UTF-8");
  make_model("\xff", fake_tokenizer, "");
  o.tokenizer = dir / "\xff";
  EXPECT_ERROR(tokenize(o), ExitCode::usage, "the name of the tokenizer's folder is not UTF-8");
}

TEST_F(ModelTokenizer, PartsOfADocumentHaveTheirOwnEndsAndMasks) {
  make_model("ends", R"({"added": {"<end>": 1114112, "<begin>": 1114113, "<last>": 1114114}, "prefix": ["<begin>"], "suffix": ["<last>"]})",
             R"({"eos_token": "<end>"})");
  Tokenizer tokenizer({.folder = dir / "ends"});
  const std::vector<DocumentPart> parts{{.begins = true, .ends = false, .pieces = {{"a"}}},
                                        {.begins = false, .ends = true, .pieces = {{"b"}}}};
  for (const bool masked : {false, true}) {
    const std::vector<Encoded> encoded = tokenizer.encode(parts, masked);
    EXPECT_EQ(encoded.at(0).ids, (std::vector<std::uint32_t>{begin_id, 'a'}));
    EXPECT_EQ(encoded.at(1).ids, (std::vector<std::uint32_t>{'b', end_id + 2, end_id}));
    EXPECT_EQ(encoded.at(1).counts, masked ? (std::vector<std::uint8_t>{1, 0, 1}) : std::vector<std::uint8_t>{});
  }
}

TEST_F(ModelTokenizer, AWorkerThatEndsIsAnErrorWithItsLastWords) {
  EXPECT_ERROR(Tokenizer({.python = dir / "no-python", .folder = dir / "model"}), ExitCode::environment, "cannot start");
  EXPECT_ERROR(Tokenizer({.python = "true", .folder = dir / "model"}), ExitCode::environment,
               dir / "model/tokenizer.json: true ended with status 0 before it had answered");
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += fmt::format("{{\"text\": \"{}{}\"}}\n", std::string(100000, 'y'), i == 13 ? "DIE" : "");
  spill(dir / "a.jsonl", lines);
  EXPECT_ERROR(tokenize(options("a.jsonl")), ExitCode::environment,
               "python3 ended with status 9 before it had answered:\nthe fake tokenizer was told to end");
  EXPECT_TRUE(fs::is_empty(dir / "out"));
  Tokenizer asked_again({.folder = dir / "model"});
  const std::vector<DocumentPart> last{{.begins = true, .ends = true, .pieces = {{"DIE"}}}};
  EXPECT_ERROR(asked_again.encode(last, false), ExitCode::environment, "model/tokenizer.json: python3 ended with status 9");
  EXPECT_ERROR(asked_again.encode(last, false), ExitCode::environment, "python3 had ended before it was asked again");
}

TEST_F(ModelTokenizer, AWorkerThatHangsIsEndedAndNamed) {
  spill(dir / "python", "#!/bin/sh\npython3 \"$@\"\n:\n");  // a script that starts another process
  fs::permissions(dir / "python", fs::perms::owner_all);
  spill(dir / "a.jsonl", "{\"text\": \"HANG " + dir.path() + "/pid\"}\n");
  TokenizeOptions o = options("a.jsonl");
  o.patience_seconds = 5, o.python = dir / "python";
  const std::string why = error_of(ExitCode::environment, [&] { tokenize(o); });
  EXPECT_HAS(why, std::string(") has not answered for 5 s and was ended. Check whether this machine has free memory"));
  EXPECT_HAS(why, std::string("Its output:\nthe fake tokenizer sleeps"));
  const pid_t sleeper = std::stoi(slurp(dir / "pid"));
  for (int i = 0; i < 6000 && kill(sleeper, 0) == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(kill(sleeper, 0), -1) << "process " << sleeper << " is still there";
  EXPECT_TRUE(fs::is_empty(dir / "out"));
}

TEST_F(ModelTokenizer, AWorkerThatHangsEndsAfterAProgramThatWasKilled) {
  spill(dir / "a.jsonl", "{\"text\": \"HANG " + dir.path() + "/pid\"}\n");
  const pid_t program = fork();
  ASSERT_GE(program, 0);
  if (program == 0) {
    tokenize(options("a.jsonl"));
    _exit(0);
  }
  const auto eventually = [](const auto& seen) {
    for (int i = 0; i < 6000 && !seen(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return seen();
  };
  const bool hangs = eventually([&] { return fs::exists(dir / "pid") && !slurp(dir / "pid").empty(); });
  kill(program, SIGKILL);
  waitpid(program, nullptr, 0);
  ASSERT_TRUE(hangs);
  const std::string sleeper = "/proc/" + slurp(dir / "pid") + "/stat";
  EXPECT_TRUE(eventually([&] {  // nobody may have asked yet how it ended
    std::string state;
    std::getline(std::ifstream(sleeper), state);
    return state.empty() || state.find(") Z ") != state.npos;
  })) << sleeper
      << " is still there";
}

TEST_F(ModelTokenizer, AWorkerThatTakesNothingIsEnded) {
  Child child({"sleep", "1000000"});
  const std::string more(300 << 10, 'x');  // than a socket holds
  EXPECT_ERROR(ask_worker(child, "text", more, std::chrono::seconds(1)), ExitCode::environment, "has not answered for 5 s");
  EXPECT_ERROR(ask_worker(child, "text", more, endless_patience), ExitCode::environment, "had ended before it was asked again");
}

TEST_F(ModelTokenizer, AMissingPackageComesWithTheCommandThatInstallsIt) {
  spill(dir / "tokenizers.py", "raise ImportError('there is none')");
  setenv("PYTHONPATH", dir.path().c_str(), 1);
  EXPECT_ERROR(Tokenizer({.folder = dir / "model"}), ExitCode::environment, "-m pip install tokenizers 'jinja2>=3.1.6'");
}

/// A template is a program of somebody else's: older sandboxes can be left.
TEST_F(ModelTokenizer, AJinja2WhoseSandboxLeaksIsRefused) {
  fs::create_directory(dir / "packages");
  fs::copy(std::string(TESSERA_FAKE_TOKENIZERS) + "/jinja2", dir / "packages/jinja2", fs::copy_options::recursive);
  setenv("PYTHONPATH", (dir / "packages" + ":" + TESSERA_FAKE_TOKENIZERS).c_str(), 1);
  spill(dir / "model/chat_template.jinja", fake_template);
  const ChatLine messages{"here", R"([{"role": "user", "content": "q"}])"};
  const std::string rest = slurp(dir / "packages/jinja2/__init__.py");
  struct {
    std::string version;
    bool taken;
  } cases[] = {{"3.1.6", true}, {"3.1.10", true},  {"3.2", true},          {"4.0.0rc1", true}, {"3.1.5", false},
               {"3.1", false},  {"2.11.3", false}, {"3.1.5.post9", false}, {"unknown", false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.version);
    spill(dir / "packages/jinja2/__init__.py", rest + "__version__ = '" + c.version + "'\n");
    fs::remove_all(dir / "packages/jinja2/__pycache__");
    Tokenizer tokenizer({.folder = dir / "model"});
    if (c.taken) {
      EXPECT_EQ(tokenizer.render_prompt(messages), "<user|q><assistant|");
      continue;
    }
    const std::string why = error_of(ExitCode::environment, [&] { tokenizer.render_prompt(messages); });
    EXPECT_HAS(why, "has jinja2 " + c.version);
    EXPECT_HAS(why, "CVE-2025-27516");
    EXPECT_HAS(why, "-m pip install 'jinja2>=3.1.6'; or run scripts/setup --tokenizers");
  }
}

TEST_F(ModelTokenizer, AWorkerThatTakesAllMemoryIsRefusedItAndSaysItsLimit) {
  const std::vector<DocumentPart> one{{.begins = true, .ends = true, .pieces = {{"one"}}}}, eat{{.pieces = {{"EAT"}}}};
  Tokenizer tokenizer({.folder = dir / "model", .memory = 256 << 20});
  const std::string why = error_of(ExitCode::environment, [&] { tokenizer.encode(eat, false); });
  EXPECT_HAS(why, dir / "model/tokenizer.json: ");
  EXPECT_HAS(why, "got no more memory: it may take 0.25 GiB");
  EXPECT_HAS(why, "--worker-memory");
  EXPECT_EQ(tokenizer.encode(one, false).at(0).ids.size(), 5u) << "it goes on with other texts";
  // A library that cannot go on without memory ends the process.
  const std::vector<DocumentPart> abort{{.pieces = {{"ABORT"}}}};
  const std::string ended = error_of(ExitCode::environment, [&] { tokenizer.encode(abort, false); });
  EXPECT_HAS(ended, " (it may take 256.00 MiB of memory: --worker-memory) before it had answered:\nmemory allocation of");
  // The command hands its option to all workers.
  spill(dir / "a.jsonl", "{\"text\": \"EAT\"}\n");
  TokenizeOptions o = options("a.jsonl");
  o.worker_memory = 128 << 20;
  EXPECT_ERROR(tokenize(o), ExitCode::environment, "it may take 0.125 GiB");
  EXPECT_TRUE(fs::is_empty(dir / "out"));
}

/// Files beside tokenizer.json that have no end, or never begin.
TEST_F(ModelTokenizer, FilesOfAModelThatAreNoRegularFilesAreRefused) {
  struct {
    const char *name, *other;  // a device; null: a pipe
  } cases[] = {{"tokenizer.json", "/dev/zero"},
               {"tokenizer_config.json", "/dev/zero"},
               {"generation_config.json", nullptr},
               {"config.json", "/dev/zero"},
               {"chat_template.jinja", nullptr}};
  for (const auto& c : cases) {
    SCOPED_TRACE(c.name);
    make_model("odd", fake_tokenizer, R"({"eos_token": "<end>"})");
    const std::string path = dir / "odd/" + c.name;
    fs::remove(path);
    if (c.other)
      fs::create_symlink(c.other, path);
    else
      ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
    const ChatLine messages{"here", R"([{"role": "user", "content": "q"}])"};
    const std::string why = error_of(ExitCode::data, [&] { Tokenizer({.folder = dir / "odd"}).render_prompt(messages); });
    EXPECT_HAS(why, path + ": ");
    EXPECT_HAS(why, "regular file");
    fs::remove(path);
  }
}

/// What a template makes of many short lines is tokenized part by part, and is the same.
TEST_F(ModelTokenizer, ConversationsThatATemplateMakesLongAreTokenizedInParts) {
  spill(dir / "model/chat_template.jinja", "'x' * 600000 + '\ufdd0' + messages[-1]['content'] + '\ufdd1'");
  std::vector<ChatLine> lines;
  for (int i = 0; i < 4; ++i) lines.push_back({"here", fmt::format(R"({{"messages": [{{"role": "assistant", "content": "{}"}}]}})", i)});
  Tokenizer tokenizer({.folder = dir / "model", .memory = 320 << 20});
  std::vector<std::string> unused;
  const std::vector<Encoded> all = tokenizer.encode_chats(lines, {}, unused);
  ASSERT_EQ(all.size(), lines.size());
  for (std::size_t i = 0; i < all.size(); ++i) {
    ASSERT_EQ(all[i].ids.size(), 600002u);
    EXPECT_EQ(all[i].ids[600000], '0' + i);
  }
}

}  // namespace
}  // namespace tessera::io::test::tokenizer_test
