// What the log shows of a deck: the keys that somebody chose, and no others.
#include "deck/schema/given.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "small_deck.hpp"

namespace tessera {
namespace {

std::string all(const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

TEST(GivenKeys, AreThoseThatDifferFromTheirDefaults) {
  const ParsedDeck parsed = parse_deck_text(small_deck, "small.toml", {"zero.stage=2", "optimizer.eps=1e-8", "run.log_every=7"}, 2);
  ASSERT_TRUE(parsed.faults.empty()) << parsed.faults.front().str();
  const std::string text = all(given_keys(parsed, 140));
  EXPECT_NE(text.find("[zero] stage = 2"), std::string::npos) << text;
  EXPECT_NE(text.find("log_every = 7"), std::string::npos) << text;
  EXPECT_NE(text.find("[model] "), std::string::npos) << text;
  EXPECT_EQ(text.find("eps = 1e"), std::string::npos) << "a default that was given is no choice: " << text;
  EXPECT_EQ(text.find("error_feedback"), std::string::npos) << text;
}

TEST(GivenKeys, OfAWholeDeckAreThoseOfTheShortOne) {
  const ParsedDeck parsed = parse_deck_text(small_deck, "small.toml", {}, 1);
  const ParsedDeck whole = parse_deck_text(print_deck(parsed.deck), "deck.toml", {}, 1);
  ASSERT_TRUE(whole.faults.empty()) << whole.faults.front().str();
  EXPECT_LT(given_keys(whole, 140).size(), given_keys(parsed, 140).size() + 5) << all(given_keys(whole, 140));
}

TEST(GivenKeys, BreakLongLinesBetweenKeys) {
  const ParsedDeck parsed = parse_deck_text(small_deck, "small.toml", {}, 1);
  const std::vector<std::string> wide = given_keys(parsed, 1000), narrow = given_keys(parsed, 30);
  EXPECT_GT(narrow.size(), wide.size());
  std::string joined;
  for (std::string line : narrow) {
    if (line.starts_with("    "))
      line = " " + line.substr(4);
    else if (!joined.empty())
      line = "\n" + line;
    joined += line;
  }
  EXPECT_EQ(joined + "\n", all(wide));
}

}  // namespace
}  // namespace tessera
