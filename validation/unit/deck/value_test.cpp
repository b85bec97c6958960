#include "deck/schema/value.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <stdexcept>

#include "small_deck.hpp"

namespace tessera::value_test {
namespace {

std::string fault_of(std::string_view key, Literal literal, Deck& deck) {
  bool is_auto = false;
  return assign(*find_key(key), literal, deck, is_auto);
}

TEST(Schema, EveryRowIsWholeAndItsDefaultIsValid) {
  for (const Key& key : deck_keys()) {
    SCOPED_TRACE(std::string(key.name));
    EXPECT_NE(key.name.find('.'), std::string_view::npos);
    EXPECT_EQ(find_key(key.name), &key) << "the name is given twice";
    EXPECT_TRUE(key.help.ends_with('.'));
    EXPECT_EQ(key.type == KeyType::toggle || key.type == KeyType::bytes ? key.automatic : Auto::kept, Auto::kept);
    EXPECT_EQ(key.required, default_text(key).empty());
  }
}

TEST(Schema, SectionsAreTogether) {
  std::vector<std::string_view> seen;
  for (const Key& key : deck_keys()) {
    if (!seen.empty() && seen.back() == key.section()) continue;
    EXPECT_EQ(std::count(seen.begin(), seen.end(), key.section()), 0) << key.section() << " stands in two places of the table";
    seen.push_back(key.section());
  }
  EXPECT_TRUE(is_section("zero"));
  EXPECT_TRUE(is_section("zero.offload_param"));
  EXPECT_FALSE(is_section("zer"));
  EXPECT_FALSE(is_section("zero.stage"));
}

// The initial values of the fields are the defaults. Values that the parser works out, and keys that the deck gives, are their own.
TEST(Schema, ADeckWithoutAKeyHasTheInitialValueOfItsField) {
  const ParsedDeck parsed = parse_small();
  int compared = 0;
  for (const Key& key : deck_keys()) {
    if (parsed.places.contains(std::string(key.name)) || key.automatic == Auto::resolved) continue;
    EXPECT_EQ(value_text(key, parsed.deck), value_text(key, Deck{})) << key.name;
    ++compared;
  }
  EXPECT_GT(compared, 250);
}

// What the reference page names as a default is a value of the key, and changes nothing where a user writes it.
TEST(Schema, DefaultsThatAreWrittenChangeNothing) {
  const ParsedDeck without = parse_small();
  for (const Key& key : deck_keys()) {
    if (key.required || without.places.contains(std::string(key.name))) continue;
    const ParsedDeck with = parse_small({fmt::format("{}={}", key.name, default_text(key))});
    EXPECT_EQ(faults_of(with), "") << key.name;
    EXPECT_EQ(print_deck(with.deck), print_deck(without.deck)) << key.name;
  }
}

TEST(Schema, DefaultsAsTheReferenceNamesThem) {
  const auto named = [](std::string_view key) { return default_text(*find_key(key)); };
  EXPECT_EQ(named("checkpoint.keep"), "2");
  EXPECT_EQ(named("evaluate.batches"), "16");
  EXPECT_EQ(named("model.kv_heads"), "\"auto\"");
  EXPECT_EQ(named("memory.device"), "\"auto\"");
  EXPECT_EQ(named("zero.overlap_comm"), "\"auto\"");
  EXPECT_EQ(named("run.name"), "\"auto\"");
  EXPECT_EQ(named("topology.start_timeout"), "\"5 min\"");
  EXPECT_EQ(named("experts.capacity_factor"), "\"dropless\"");
  EXPECT_EQ(named("zero.param_persistence_threshold"), "100000");
  EXPECT_EQ(named("precision.fp8_skip"), R"(["head", "embedding"])");
  EXPECT_EQ(named("model.layers"), "");
}

TEST(Value, BytesCarryUnits) {
  Deck deck;
  auto bytes = [&](const std::string& text) {
    deck.memory.host = -7;
    std::string fault = fault_of("memory.host", {text, ""}, deck);
    return fault.empty() ? deck.memory.host : -1;
  };
  EXPECT_EQ(bytes("64 MiB"), 64ll << 20);
  EXPECT_EQ(bytes("64MiB"), 64ll << 20);
  EXPECT_EQ(bytes("1.5 GiB"), 3ll << 29);
  EXPECT_EQ(bytes("2 TB"), 2000000000000);
  EXPECT_EQ(bytes("9007199254740993 B"), 9007199254740993);
  EXPECT_EQ(bytes("64"), -1);
  EXPECT_EQ(bytes("64 mib"), -1);
  EXPECT_EQ(bytes("64 MiB "), -1);
  EXPECT_EQ(bytes("MiB"), -1);
  EXPECT_EQ(bytes(""), -1);
  EXPECT_EQ(bytes("-1 MiB"), -1);
  EXPECT_EQ(bytes("0 B"), -1);
  EXPECT_EQ(bytes("1e300 TiB"), -1);
  EXPECT_EQ(bytes("nan MiB"), -1);
  EXPECT_EQ(bytes("1.3 B"), -1);
  EXPECT_NE(fault_of("memory.host", {std::int64_t{64}, ""}, deck).find("64 MiB"), std::string::npos);
}

TEST(Value, DurationsCarryUnits) {
  Deck deck;
  auto seconds = [&](const std::string& text) {
    std::string fault = fault_of("topology.collective_timeout", {text, ""}, deck);
    return fault.empty() ? deck.topology.collective_timeout : -1;
  };
  EXPECT_EQ(seconds("30 min"), 1800);
  EXPECT_EQ(seconds("1.5h"), 5400);
  EXPECT_EQ(seconds("2 d"), 172800);
  EXPECT_EQ(value_text(*find_key("topology.collective_timeout"), deck), "\"2 d\"");
  EXPECT_EQ(seconds("90 s"), 90);
  EXPECT_EQ(value_text(*find_key("topology.collective_timeout"), deck), "\"90 s\"");
  EXPECT_EQ(seconds("0 s"), -1);
  EXPECT_EQ(seconds("0.5 s"), -1);
  EXPECT_EQ(seconds("5 MiB"), -1);
  EXPECT_EQ(seconds("300"), -1);
  EXPECT_NE(fault_of("topology.collective_timeout", {std::int64_t{300}, ""}, deck).find("30 min"), std::string::npos);
}

TEST(Value, BytesPrintInTheLargestWholeUnit) {
  const Key& key = *find_key("memory.host");
  for (auto [bytes, text] :
       {std::pair{std::int64_t{8} << 30, "\"8 GiB\""}, {1536ll << 20, "\"1536 MiB\""}, {1000, "\"1 KB\""}, {1001, "\"1001 B\""}}) {
    Deck deck;
    deck.memory.host = bytes;
    EXPECT_EQ(value_text(key, deck), text);
  }
}

TEST(Value, ElementsTakeWholeFloats) {
  Deck deck;
  EXPECT_EQ(fault_of("zero.reduce_bucket_size", {5e8, ""}, deck), "");
  EXPECT_EQ(deck.zero.reduce_bucket_size, 500000000);
  EXPECT_NE(fault_of("zero.reduce_bucket_size", {0.5, ""}, deck), "");
  EXPECT_NE(fault_of("zero.reduce_bucket_size", {1e19, ""}, deck), "");
  EXPECT_NE(fault_of("zero.reduce_bucket_size", {std::nan(""), ""}, deck), "");
  EXPECT_NE(fault_of("run.steps", {5e8, ""}, deck), "") << "only quantities of elements take floats";
}

TEST(Value, RealsTakeIntegersAndRefuseInfinity) {
  Deck deck;
  EXPECT_EQ(fault_of("optimizer.gradient_clipping", {std::int64_t{2}, ""}, deck), "");
  EXPECT_EQ(deck.optimizer.gradient_clipping, 2.0);
  EXPECT_NE(fault_of("optimizer.gradient_clipping", {std::numeric_limits<double>::infinity(), ""}, deck), "");
}

TEST(Value, AWordMayStandForZero) {
  Deck deck;
  const Key& key = *find_key("experts.capacity_factor");
  EXPECT_EQ(value_text(key, deck), "\"dropless\"");
  EXPECT_EQ(fault_of("experts.capacity_factor", {1.25, ""}, deck), "");
  EXPECT_EQ(deck.experts.capacity_factor, 1.25);
  EXPECT_EQ(value_text(key, deck), "1.25");
  EXPECT_EQ(fault_of("experts.capacity_factor", {"dropless", ""}, deck), "");
  EXPECT_EQ(deck.experts.capacity_factor, 0);
  EXPECT_NE(fault_of("experts.capacity_factor", {"dropped", ""}, deck).find("or \"dropless\""), std::string::npos);
  EXPECT_NE(fault_of("experts.capacity_factor", {0.0, ""}, deck), "");
  EXPECT_NE(fault_of("optimizer.gradient_clipping", {"dropless", ""}, deck), "");
}

TEST(Value, TextIsQuotedForToml) {
  EXPECT_EQ(toml_string("a\"b\\c\n\x01"), "\"a\\\"b\\\\c\\n\\u0001\"");
  EXPECT_EQ(shortest(0.1), "0.1");
  EXPECT_EQ(shortest(1), "1.0");
  EXPECT_EQ(shortest(5e8), "5e+08");
}

TEST(Values, ListsOfTexts) {
  const Key& key = *find_key("activation.keep");
  Deck deck;
  const std::vector<std::string> names{"attention", "mlp.gate_up", "a \"quoted\" one"};
  EXPECT_EQ(fault_of("activation.keep", {names, ""}, deck), "");
  EXPECT_EQ(deck.activation.keep, names);
  EXPECT_EQ(value_text(key, deck), R"(["attention", "mlp.gate_up", "a \"quoted\" one"])");
  EXPECT_EQ(fault_of("activation.keep", {std::vector<std::string>{}, ""}, deck), "");
  EXPECT_TRUE(deck.activation.keep.empty());
  EXPECT_EQ(value_text(key, deck), "[]");
  for (const Literal& wrong : {Literal{"attention", ""}, Literal{std::int64_t{3}, ""}, Literal{std::monostate{}, "an array"}})
    EXPECT_NE(fault_of("activation.keep", wrong, deck).find("expected a list of texts"), std::string::npos) << wrong.str();
}

/// What stands in a deck for a word of a mode: true and false of a toggle have no quotes.
Literal written(const Key& key, std::string_view word) {
  if (key.type == KeyType::toggle && word != "auto") return {word == "true", ""};
  return {std::string(word), ""};
}

TEST(Modes, EachWordIsReadAndPrintedAndNoOtherIsTaken) {
  std::int64_t modes = 0;
  for (const Key& key : deck_keys()) {
    const auto* mode = std::get_if<ModeField>(&key.field);
    if (!mode) continue;
    SCOPED_TRACE(std::string(key.name));
    ++modes;
    Deck deck;
    std::set<std::string> printed;
    for (const std::string_view word : mode->words) {
      const Literal literal = written(key, word);
      bool is_auto = false;
      EXPECT_EQ(assign(key, literal, deck, is_auto), "") << word;
      EXPECT_EQ(is_auto, word == "auto" && key.automatic != Auto::no) << word;
      EXPECT_EQ(mode->read(deck), word);
      EXPECT_EQ(value_text(key, deck), literal.str());
      printed.insert(value_text(key, deck));
      const std::string wrong = fault_of(key.name, {"no such word", ""}, deck);
      EXPECT_EQ(mode->read(deck), word) << "a refused word changed it";
      for (const std::string_view named : mode->words) EXPECT_NE(wrong.find(written(key, named).str()), wrong.npos) << wrong;
      EXPECT_NE(fault_of(key.name, {std::string(word) + " ", ""}, deck), "");
    }
    EXPECT_EQ(printed.size(), mode->words.size()) << "two values have one word";
  }
  EXPECT_EQ(modes, 35);
}

// Choices beside modes: types of numbers, a word in the place of a number, and the table of optimizers.
TEST(Modes, KeysOfFixedWordsAreModes) {
  const std::set<std::string_view> others{"precision.compute", "precision.gradients", "optimizer.moments", "checkpoint.files",
                                          "optimizer.type"};
  for (const Key& key : deck_keys())
    EXPECT_EQ(!key.choices.empty() || key.type == KeyType::toggle,
              std::holds_alternative<ModeField>(key.field) || others.contains(key.name))
        << key.name;
}

TEST(Modes, AWordIsOfItsEnumAlone) {
  EXPECT_EQ(from_word<Recompute>("selective"), Recompute::selective);
  EXPECT_EQ(word_of(PipelineSchedule::one_forward_one_backward), "1f1b");
  EXPECT_EQ(from_word<Recompute>("1f1b"), std::nullopt);
  EXPECT_EQ(from_word<Recompute>(""), std::nullopt);
  EXPECT_THROW(word_of(static_cast<Recompute>(enum_words<Recompute>.size())), std::out_of_range) << "an enumerator without a word";
}

}  // namespace
}  // namespace tessera::value_test
