// Likelihoods of choices and documents against those of a text's logits, token by token; and what a task file may say.
#include "generate/task.hpp"

#include <gtest/gtest.h>

#include <cmath>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "generate/decoder.hpp"
#include "memory/runtime.hpp"

namespace tessera {
namespace {

constexpr std::int64_t T = 24;

class Task : public testing::Test {
 protected:
  test::Scratch scratch_;
  Deck deck_ = test::tiny_deck({"model.vocab=257", fmt::format("batch.sequence_length={}", T)});
  std::string checkpoint_ = test::write_sharded(scratch_.path(), deck_, 3);

  /// The log-likelihood of the last `counted` of these tokens, from logits.
  double oracle(const std::vector<std::int32_t>& tokens, std::size_t counted) const {
    const LoadedModel model =
        load_model(checkpoint_, "host", {.text = {.prompt = 1, .capacity = static_cast<std::int64_t>(tokens.size())}});
    Decoder decoder(*model.engine);
    double sum = 0;
    for (std::size_t t = 0; t + 1 < tokens.size(); ++t) {
      decoder.next(tokens[t]);
      if (t + 1 + counted < tokens.size()) continue;
      const std::span<const float> logits = decoder.logits();
      const double most = *std::ranges::max_element(logits);
      double normaliser = 0;
      for (const float x : logits) normaliser += std::exp(static_cast<double>(x) - most);
      sum += logits[static_cast<std::size_t>(tokens[t + 1])] - most - std::log(normaliser);
    }
    return sum;
  }
  static std::vector<std::int32_t> tokens_of(const std::string& text) {
    std::vector<std::int32_t> tokens{256};
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  static TaskItem question(std::string context, std::vector<std::string> choices) {
    TaskItem item;
    item.line = 7;
    item.context = std::move(context), item.choices = std::move(choices);
    return item;
  }
  static TaskItem document(std::string text) {
    TaskItem item;
    item.text = std::move(text);
    return item;
  }
};

TEST_F(Task, AChoiceIsAsLikelyAsItsLogitsSay) {
  const std::vector<TaskItem> items{question("two and two are ", {"four", "5", "\xc3\xa9t\xc3\xa9"}), question("", {"a", "bcd"})};
  Examiner model(checkpoint_, "host", items, "task");
  for (std::size_t item_at = 0; item_at < items.size(); ++item_at) {
    const TaskItem& item = items[item_at];
    const Answered answered = model.answer(item_at);
    ASSERT_EQ(answered.log_likelihoods.size(), item.choices.size());
    std::vector<double> wanted, by_byte;
    for (const std::string& choice : item.choices) {
      wanted.push_back(oracle(tokens_of(item.context + choice), choice.size()));
      by_byte.push_back(wanted.back() / static_cast<double>(choice.size()));
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(answered.log_likelihoods[i], wanted[i], 1e-4 * std::abs(wanted[i])) << i;
    EXPECT_EQ(answered.chosen, static_cast<std::size_t>(std::ranges::max_element(wanted) - wanted.begin()));
    EXPECT_EQ(answered.chosen_by_byte, static_cast<std::size_t>(std::ranges::max_element(by_byte) - by_byte.begin()));
  }
}

TEST_F(Task, AContextThatIsTooLongLosesItsBeginning) {
  const std::string context = "a context of more tokens than the sequences of the model have, by far", choice = "yes, so it is";
  const std::vector<TaskItem> items{question(context, {choice, "no"})};
  Examiner model(checkpoint_, "host", items, "task");
  std::vector<std::int32_t> tokens = tokens_of(context + choice);
  tokens.erase(tokens.begin(), tokens.end() - (T + 1));
  const double wanted = oracle(tokens, choice.size());
  EXPECT_NEAR(model.answer(0).log_likelihoods[0], wanted, 1e-4 * std::abs(wanted));
  const std::vector<TaskItem> too_long{question("", {"short", std::string(T + 1, 'x')})};
  const std::string said = test::error_of(ExitCode::data, [&] { Examiner(checkpoint_, "host", too_long, "task.jsonl"); });
  EXPECT_TRUE(test::has(said, "task.jsonl:7: a choice of 25 tokens")) << said;
}

TEST_F(Task, ADocumentIsReadInWindows) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{T - 1}, std::size_t{T}, std::size_t{T + 1}, std::size_t{3 * T + 5}}) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + i * 5 % 26);
    const std::vector<TaskItem> items{document(text)};
    Examiner model(checkpoint_, "host", items, "task");
    const std::vector<std::int32_t> tokens = tokens_of(text);
    double wanted = 0;
    for (std::size_t at = 0; at < length; at += T) {
      const std::size_t end = std::min(at + T, length);
      wanted -= oracle({tokens.begin() + static_cast<std::ptrdiff_t>(at), tokens.begin() + static_cast<std::ptrdiff_t>(end) + 1}, end - at);
    }
    const Read read = model.read(0);
    EXPECT_EQ(read.tokens, static_cast<std::int64_t>(length));
    EXPECT_EQ(read.bytes, static_cast<std::int64_t>(length));
    EXPECT_NEAR(read.loss, wanted, 1e-4 * wanted) << length;
  }
}

/// A token is a character: validation/tokenizers/fake.
TEST_F(Task, TheModelsOwnTokenizerMakesTheTokens) {
  setenv("PYTHONPATH", TESSERA_FAKE_TOKENIZERS, 1);
  const auto make_tokenizer = [&](const std::string& name, const std::string& text) {
    test::fs::create_directories(scratch_ / name);
    test::spill(scratch_ / name + "/tokenizer.json", text);
    test::spill(scratch_ / name + "/tokenizer_config.json", R"({"eos_token": "<end>"})");
    return scratch_ / name;
  };
  const std::string framed = make_tokenizer("framed", R"({"added": {"<end>": 255, "<begin>": 254}, "prefix": ["<begin>"]})");
  const std::string bare = make_tokenizer("bare", R"({"added": {"<end>": 255}})");
  const std::vector<TaskItem> items{question("one ", {"two", "\xc3\xa9t"}), question("", {"a", "bcd"}), document("caf\xc3\xa9 or so")};
  for (const auto& [folder, first] : {std::pair(framed, 254), std::pair(bare, 255)}) {
    Examiner model(checkpoint_, "host", items, "task", folder);
    const auto likelihood = [&, first = first](std::vector<std::int32_t> tokens, std::size_t counted, bool begun) {
      if (begun) tokens.insert(tokens.begin(), first);
      return oracle(tokens, counted);
    };
    // What follows a context needs nothing before it where the tokenizer puts nothing there.
    const bool begun = first == 254;
    EXPECT_NEAR(model.answer(0).log_likelihoods[1], likelihood({'o', 'n', 'e', ' ', 0xe9, 't'}, 2, begun), 1e-3);
    EXPECT_NEAR(model.answer(1).log_likelihoods[1], likelihood({'b', 'c', 'd'}, 3, true), 1e-3);
    const Read read = model.read(2);
    EXPECT_EQ(read.tokens, 10);
    EXPECT_EQ(read.bytes, 11);
    EXPECT_NEAR(read.loss, -likelihood({'c', 'a', 'f', 0xe9, ' ', 'o', 'r', ' ', 's', 'o'}, 10, true), 1e-3);
  }
  const std::string said = test::error_of(ExitCode::data, [&] {
    Examiner(checkpoint_, "host", {question("x", {"a", "\xe2\x82\xac"})}, "task.jsonl", bare);
  });
  EXPECT_TRUE(test::has(said, "task.jsonl:7: ") && test::has(said, "makes token 8364, and the model has 257 tokens")) << said;
}

TEST_F(Task, AnotherTokenizersModelIsRefused) {
  test::Scratch other;
  const std::string checkpoint = test::write_sharded(other.path(), test::tiny_deck({"model.vocab=300"}), 1);
  const std::string said = test::error_of(ExitCode::usage, [&] { Examiner(checkpoint, "host", {document("x")}, "task"); });
  EXPECT_TRUE(test::has(said, "vocabulary of 300")) << said;
}

TEST_F(Task, FilesAreReadByLine) {
  test::spill(scratch_ / "a.jsonl",
              "{\"context\": \"c\\n\", \"choices\": [\"x\", \"yz\"], \"answer\": 1, \"id\": 5}\n\n \t\r\n{\"text\": \"free \\u20ac\"}");
  const std::vector<TaskItem> items = read_task(scratch_ / "a.jsonl");
  ASSERT_EQ(items.size(), 2u);
  EXPECT_TRUE(items[0].question());
  EXPECT_EQ(items[0].context, "c\n");
  EXPECT_EQ(items[0].choices, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(items[0].answer, 1u);
  EXPECT_FALSE(items[1].question());
  EXPECT_EQ(items[1].text, "free \xe2\x82\xac");
  EXPECT_EQ(items[1].line, 4);
  for (const auto& [line, says] : std::vector<std::pair<std::string, std::string>>{
           {"{", "no JSON"},
           {"[]", "no JSON object"},
           {"{\"context\": \"c\"}", "\"choices\""},
           {"{\"choices\": [\"a\", \"b\"], \"answer\": 0}", "\"context\""},
           {"{\"context\": \"c\", \"choices\": [\"a\"], \"answer\": 0}", "two or more"},
           {"{\"context\": \"c\", \"choices\": [\"a\", 3], \"answer\": 0}", "choice 1 is no text"},
           {"{\"context\": \"c\", \"choices\": [\"\", \"b\"], \"answer\": 0}", "choice 0 is no text"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"answer\": 2}", "from 0 to 1"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"answer\": -1}", "from 0 to 1"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"answer\": \"a\"}", "from 0 to 1"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"]}", "from 0 to 1"},
           {"{\"text\": \"\"}", "nothing to read"},
           {"{\"text\": 3}", "no string \"text\""},
           {"{\"text\": \"a\", \"choices\": []}", "beside"},
           {"{\"text\": \"\xff\"}", "no JSON"}}) {
    test::spill(scratch_ / "b.jsonl", "{\"text\": \"fine\"}\n" + line + "\n");
    const std::string said = test::error_of(ExitCode::data, [&] { read_task(scratch_ / "b.jsonl"); });
    EXPECT_TRUE(test::has(said, "b.jsonl:2: ") && test::has(said, says)) << line << ": " << said;
  }
  test::spill(scratch_ / "c.jsonl", "\n\n");
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { read_task(scratch_ / "c.jsonl"); }), "holds no lines"));
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { read_task(scratch_ / "none"); }), "none"));
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const tessera::KernelRuntime runtime(1);
  return RUN_ALL_TESTS();
}
