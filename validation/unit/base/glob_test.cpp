// Patterns against names, and against a plain recursive reading of them.
#include "base/glob.hpp"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace tessera::glob_test {
namespace {

bool plainly(std::string_view pattern, std::string_view name) {
  if (pattern.empty()) return name.empty();
  if (pattern[0] == '*') return plainly(pattern.substr(1), name) || (!name.empty() && plainly(pattern, name.substr(1)));
  return !name.empty() && (pattern[0] == '?' || pattern[0] == name[0]) && plainly(pattern.substr(1), name.substr(1));
}

TEST(Glob, Names) {
  EXPECT_TRUE(matches_glob("layers.0.*", "layers.0.mlp.w_up"));
  EXPECT_FALSE(matches_glob("layers.0.*", "layers.10.mlp.w_up"));
  EXPECT_TRUE(matches_glob("*.w?", "layers.3.attention.wq"));
  EXPECT_FALSE(matches_glob("layers", "layers.0"));
  EXPECT_TRUE(matches_glob("*", ""));
  EXPECT_FALSE(matches_glob("?", ""));
}

TEST(Glob, AsAPlainReadingSays) {
  std::mt19937 random(1);
  const auto word = [&](std::string_view letters) {
    std::string text(random() % 9, ' ');
    for (char& c : text) c = letters[random() % letters.size()];
    return text;
  };
  int matches = 0;
  for (int trial = 0; trial < 20000; ++trial) {
    const std::string pattern = word("ab*?"), name = word("ab");
    ASSERT_EQ(matches_glob(pattern, name), plainly(pattern, name)) << pattern << " and " << name;
    matches += plainly(pattern, name);
  }
  EXPECT_GT(matches, 1000);
}

}  // namespace
}  // namespace tessera::glob_test
