// validation/decks through the parser: each deck gives exactly the faults that stand beside it. validation/decks/check does the same
// through the program.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "small_deck.hpp"

namespace tessera::bad_decks_test {
namespace {

namespace fs = std::filesystem;

struct BadDeck {
  std::string text, expected;
  std::vector<std::string> overrides;
  int ranks = 0;
};

std::string read_text(const fs::path& path) {
  std::ifstream in(path);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// Splits the "# args:" line as validation/decks/check does.
BadDeck read_bad_deck(const fs::path& path) {
  BadDeck bad{read_text(path), read_text(fs::path(path).replace_extension(".expected")), {}, 0};
  std::istringstream lines(bad.text);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("# args: ")) continue;
    std::istringstream words(line.substr(8));
    for (std::string word; words >> word;) {
      if (word == "--ranks") {
        words >> bad.ranks;
      } else {
        bad.overrides.push_back(word);
      }
    }
  }
  return bad;
}

TEST(BadDecks, GiveExactlyTheirFaults) {
  int decks = 0;
  for (const auto& entry : fs::directory_iterator(std::string(TESSERA_SOURCE_DIR) + "/validation/decks")) {
    if (entry.path().extension() != ".toml") continue;
    ++decks;
    BadDeck bad = read_bad_deck(entry.path());
    std::string found = faults_of(parse_deck_text(bad.text, entry.path().filename().string(), bad.overrides, bad.ranks));
    EXPECT_EQ(found, bad.expected) << entry.path();
    EXPECT_NE(bad.expected, "");
  }
  EXPECT_GE(decks, 20);
}

}  // namespace
}  // namespace tessera::bad_decks_test
