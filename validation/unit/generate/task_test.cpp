// Likelihoods of choices and documents against those of a text's logits, token by token; and what a task file may say.
#include "generate/task.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "../model/random_models.hpp"
#include "../scratch.hpp"
#include "../sharded_checkpoint.hpp"
#include "memory/runtime.hpp"
#include "train/text/decoder.hpp"

namespace tessera::task_test {
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
        load_model(checkpoint_, RunDevice::host, {.text = {.prompt = 1, .capacity = static_cast<std::int64_t>(tokens.size())}});
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
  Examiner model(checkpoint_, RunDevice::host, items, "task");
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
  Examiner model(checkpoint_, RunDevice::host, items, "task");
  std::vector<std::int32_t> tokens = tokens_of(context + choice);
  tokens.erase(tokens.begin(), tokens.end() - (T + 1));
  const double wanted = oracle(tokens, choice.size());
  EXPECT_NEAR(model.answer(0).log_likelihoods[0], wanted, 1e-4 * std::abs(wanted));
  const std::vector<TaskItem> too_long{question("", {"short", std::string(T + 1, 'x')})};
  const std::string said = test::error_of(ExitCode::data, [&] { Examiner(checkpoint_, RunDevice::host, too_long, "task.jsonl"); });
  EXPECT_TRUE(test::has(said, "task.jsonl:7: a choice of 25 tokens")) << said;
}

TEST_F(Task, ADocumentIsReadInWindows) {
  for (const std::size_t length : {std::size_t{1}, std::size_t{T - 1}, std::size_t{T}, std::size_t{T + 1}, std::size_t{3 * T + 5}}) {
    std::string text;
    for (std::size_t i = 0; i < length; ++i) text += static_cast<char>('a' + i * 5 % 26);
    const std::vector<TaskItem> items{document(text)};
    Examiner model(checkpoint_, RunDevice::host, items, "task");
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

/// Likelihoods of all choices and losses of all documents, of a model that takes so many tokens a pass.
std::vector<double> scores(const std::string& checkpoint, const std::vector<TaskItem>& items, std::int64_t pass_tokens) {
  Examiner model(checkpoint, RunDevice::host, items, "task", {}, pass_tokens);
  std::vector<double> all;
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (!items[i].question()) {
      all.push_back(-model.read(i).loss);
      continue;
    }
    const std::vector<double> choices = model.answer(i).log_likelihoods;
    all.insert(all.end(), choices.begin(), choices.end());
  }
  return all;
}

/// Of all lengths up to several windows.
std::vector<TaskItem> many_items(const std::function<TaskItem(std::string, std::vector<std::string>)>& question,
                                 const std::function<TaskItem(std::string)>& document) {
  std::vector<TaskItem> items;
  for (std::size_t i = 0; i < 60; ++i) {
    std::string text;
    for (std::size_t c = 0; c < 1 + i * 7 % 31; ++c) text += static_cast<char>('a' + (c + i) * 5 % 26);
    items.push_back(i % 3 == 0 ? document(text + text) : question(text, {text.substr(0, 1 + i % 5), "no", "or so"}));
  }
  return items;
}

void expect_near(const std::vector<double>& found, const std::vector<double>& wanted, double relative) {
  ASSERT_EQ(found.size(), wanted.size());
  for (std::size_t i = 0; i < wanted.size(); ++i) EXPECT_NEAR(found[i], wanted[i], relative * std::abs(wanted[i])) << i;
}

TEST_F(Task, TextsTogetherAreAsLikelyAsAlone) {
  const std::vector<TaskItem> items = many_items(question, document);
  const std::vector<double> alone = scores(checkpoint_, items, 1);
  for (const std::int64_t pass_tokens : {std::int64_t{2}, 3 * T, std::int64_t{0}})
    expect_near(scores(checkpoint_, items, pass_tokens), alone, 2e-6);
  EXPECT_EQ(scores(checkpoint_, items, 0), scores(checkpoint_, items, 0)) << "the same bits twice";
  // Whoever is asked for first.
  Examiner model(checkpoint_, RunDevice::host, items, "task");
  const double last = model.answer(59).log_likelihoods[0];
  EXPECT_EQ(model.answer(59).log_likelihoods[0], last);
  EXPECT_NEAR(model.read(0).loss, -alone[0], 2e-6 * std::abs(alone[0]));
}

TEST_F(Task, TextsTogetherAreAsLikelyAsAloneInBf16) {
  test::Scratch other;
  const std::string checkpoint = test::write_sharded(
      other.path(), test::tiny_deck({"model.vocab=257", "precision.compute=bf16", "model.qk_norm=true", "batch.sequence_length=24"}), 1);
  const std::vector<TaskItem> items = many_items(question, document);
  expect_near(scores(checkpoint, items, 0), scores(checkpoint, items, 1), 1e-2);
}

// Experts that drop tokens would drop others in company.
TEST_F(Task, WhereExpertsDropTokensTextsGoAlone) {
  for (const char* capacity : {"experts.capacity_factor=0.5", "model.experts_per_token=2"}) {
    test::Scratch other;
    const std::string checkpoint =
        test::write_sharded(other.path(), test::tiny_deck({"model.vocab=257", "model.experts=4", capacity, "batch.sequence_length=24"}), 1);
    const std::vector<TaskItem> items = many_items(question, document);
    expect_near(scores(checkpoint, items, 0), scores(checkpoint, items, 1), std::string_view(capacity).ends_with(".5") ? 0 : 2e-6);
  }
}

TEST(TaskPass, PiecesLieWhereThereIsRoom) {
  const std::vector<std::int32_t> tokens{1, 2, 3, 4, 5, 6, 7, 8, 9};
  const auto piece = [&](std::size_t places, std::int64_t counted) { return TaskPiece{std::span(tokens).first(places + 1), counted}; };
  const std::vector<TaskPiece> pieces{piece(3, 2), piece(5, 1), piece(2, 2), piece(4, 1), piece(1, 1)};
  const std::vector<PiecePlace> places = place_pieces(pieces, 2, 6, 10);
  ASSERT_EQ(places.size(), 3u) << "the fourth has no room, and nobody passes it";
  EXPECT_EQ(place_pieces(pieces, 2, 6, 2).size(), 2u);
  std::vector<std::int32_t> inputs(12), targets(12), groups(12), starts(12), padding(12, 7);
  std::vector<float> weights(12);
  write_pass(pieces, places, 6, {inputs, targets, weights, groups, starts, padding});
  constexpr std::int32_t no = -1;
  EXPECT_EQ(inputs, (std::vector<std::int32_t>{1, 2, 3, 1, 2, 0, 1, 2, 3, 4, 5, 0}));
  EXPECT_EQ(targets, (std::vector<std::int32_t>{0, 3, 4, 2, 3, 0, 0, 0, 0, 0, 6, 0}));
  EXPECT_EQ(weights, (std::vector<float>{0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 1, 0}));
  EXPECT_EQ(groups, (std::vector<std::int32_t>{0, 0, 0, 2, 2, no, 1, 1, 1, 1, 1, no}));
  EXPECT_EQ(starts, (std::vector<std::int32_t>{0, 0, 0, 3, 3, 5, 0, 0, 0, 0, 0, 5}));
  EXPECT_EQ(padding, (std::vector<std::int32_t>{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 1}));
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
    Examiner model(checkpoint_, RunDevice::host, items, "task", {.folder = folder});
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
    Examiner(checkpoint_, RunDevice::host, {question("x", {"a", "\xe2\x82\xac"})}, "task.jsonl", {.folder = bare});
  });
  EXPECT_TRUE(test::has(said, "task.jsonl:7: ") && test::has(said, "makes token 8364, but the model has 257 tokens")) << said;
  const std::string eats = test::error_of(ExitCode::environment, [&] {
    Examiner(checkpoint_, RunDevice::host, {document("EAT")}, "task.jsonl", {.folder = bare, .memory = 128 << 20});
  });
  EXPECT_TRUE(test::has(eats, "it may take 0.125 GiB") && test::has(eats, "--worker-memory")) << eats;
}

/// Messages are rendered up to the model's turn, and nothing stands before what the template says.
TEST_F(Task, ConversationsAreAskedByTheChatTemplate) {
  setenv("PYTHONPATH", TESSERA_FAKE_TOKENIZERS, 1);
  const std::string folder = scratch_ / "chat", bare = scratch_ / "no-template";
  for (const std::string& made : {folder, bare}) {
    test::fs::create_directories(made);
    test::spill(made + "/tokenizer.json", R"({"added": {"<end>": 255, "<begin>": 254}, "prefix": ["<begin>"]})");
    test::spill(made + "/tokenizer_config.json", R"({"eos_token": "<end>"})");
  }
  test::spill(folder + "/chat_template.jinja",
              "''.join(m['role'][0] + m['content'] for m in messages) + ('A:' if add_generation_prompt else '')");
  const auto asked = [](std::string messages) {
    TaskItem item = question("", {"no", "y"});
    item.messages = std::move(messages);
    return item;
  };
  const TaskItem item = asked(R"([{"role": "user", "content": "hi?"}])");
  Examiner model(checkpoint_, RunDevice::host, {item}, "task.jsonl", {.folder = folder});
  EXPECT_NEAR(model.answer(0).log_likelihoods[0], oracle({'u', 'h', 'i', '?', 'A', ':', 'n', 'o'}, 2), 1e-3);
  EXPECT_NEAR(model.answer(0).log_likelihoods[1], oracle({'u', 'h', 'i', '?', 'A', ':', 'y'}, 1), 1e-3);
  const auto refused = [&](ExitCode code, const TaskItem& wrong, const std::string& tokenizer) {
    return test::error_of(code, [&] { Examiner(checkpoint_, RunDevice::host, {wrong}, "task.jsonl", {.folder = tokenizer}); });
  };
  EXPECT_TRUE(
      test::has(refused(ExitCode::data, asked(R"([{"content": "hi"}])"), folder), "task.jsonl:7: message 1 has no string \"role\""));
  EXPECT_TRUE(test::has(refused(ExitCode::data, asked(R"("hi")"), folder), "task.jsonl:7: "));
  EXPECT_TRUE(test::has(refused(ExitCode::usage, item, bare), "no chat template"));
  EXPECT_TRUE(test::has(refused(ExitCode::usage, item, ""), "task.jsonl:7: ")) << "bytes have none";
}

TEST_F(Task, AnotherTokenizersModelIsRefused) {
  test::Scratch other;
  const std::string checkpoint = test::write_sharded(other.path(), test::tiny_deck({"model.vocab=300"}), 1);
  const std::string said = test::error_of(ExitCode::usage, [&] { Examiner(checkpoint, RunDevice::host, {document("x")}, "task"); });
  EXPECT_TRUE(test::has(said, "vocabulary of 300")) << said;
}

TEST_F(Task, FilesAreReadByLine) {
  test::spill(scratch_ / "a.jsonl",
              "{\"context\": \"c\\n\", \"choices\": [\"x\", \"yz\"], \"answer\": 1, \"id\": 5, \"messages\": null}\n\n \t\r\n{\"text\": "
              "\"free \\u20ac\", "
              "\"id\": null, \"question\": \"q\", \"choices\": null}");
  io::UnusedKeys unused, ignored;
  const std::vector<TaskItem> items = read_task(scratch_ / "a.jsonl", unused);
  EXPECT_EQ(unused.names(), (std::vector<std::string>{"id", "question"}));
  ASSERT_EQ(items.size(), 2u);
  EXPECT_TRUE(items[0].question());
  EXPECT_EQ(items[0].context, "c\n");
  EXPECT_EQ(items[0].choices, (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(items[0].answer, 1u);
  EXPECT_EQ(items[0].messages, "");
  EXPECT_FALSE(items[1].question());
  EXPECT_EQ(items[1].text, "free \xe2\x82\xac");
  EXPECT_EQ(items[1].line, 4);
  for (const auto& [line, says] : std::vector<std::pair<std::string, std::string>>{
           {"{", "not JSON"},
           {"[]", "not a JSON object"},
           {"{\"context\": \"c\"}", "\"choices\""},
           {"{\"choices\": [\"a\", \"b\"], \"answer\": 0}", "\"context\""},
           {"{\"context\": \"c\", \"choices\": [\"a\"], \"answer\": 0}", "two or more"},
           {"{\"context\": \"c\", \"choices\": [\"a\", 3], \"answer\": 0}", "choice 1 is not a text"},
           {"{\"context\": \"c\", \"choices\": [\"\", \"b\"], \"answer\": 0}", "choice 0 is not a text"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"answer\": 2}", "from 0 to 1"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"answer\": -1}", "from 0 to 1"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"], \"answer\": \"a\"}", "from 0 to 1"},
           {"{\"context\": \"c\", \"choices\": [\"a\", \"b\"]}", "from 0 to 1"},
           {"{\"context\": \"c\", \"messages\": [], \"choices\": [\"a\", \"b\"], \"answer\": 0}", "\"messages\" and a \"context\""},
           {"{\"messages\": [], \"choices\": [\"a\", \"b\"], \"answer\": 0, \"tools\": []}", "rendered without \"tools\""},
           {"{\"text\": null, \"choices\": [\"a\", \"b\"], \"answer\": 0}", "\"context\""},
           {"{\"text\": \"\"}", "nothing to read"},
           {"{\"text\": 3}", "lacks the string \"text\""},
           {"{\"text\": \"a\", \"choices\": []}", "\"text\" and \"choices\""},
           {"{\"text\": \"\xff\"}", "not JSON"}}) {
    test::spill(scratch_ / "b.jsonl", "{\"text\": \"fine\"}\n" + line + "\n");
    const std::string said = test::error_of(ExitCode::data, [&] { read_task(scratch_ / "b.jsonl", ignored); });
    EXPECT_TRUE(test::has(said, "b.jsonl:2: ") && test::has(said, says)) << line << ": " << said;
  }
  test::spill(scratch_ / "c.jsonl", "\n\n");
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { read_task(scratch_ / "c.jsonl", ignored); }), "holds no lines"));
  EXPECT_TRUE(test::has(test::error_of(ExitCode::data, [&] { read_task(scratch_ / "none", ignored); }), "none"));
}

}  // namespace
}  // namespace tessera::task_test
