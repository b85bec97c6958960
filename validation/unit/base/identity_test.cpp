#include "base/identity.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>

namespace tessera::identity_test {
namespace {

Identity identity(const std::string& commit, const std::string& instructions) {
  return {{"version", "1"}, {"commit", commit}, {"instructions", instructions, true}};
}

TEST(Identity, ReadsBackWhatItPrints) {
  const Identity mine = identity("1a2b", "AVX2");
  EXPECT_EQ(parse_identity(print_identity(mine)), mine);
  EXPECT_TRUE(parse_identity("no fields\n").empty());
}

TEST(Identity, EqualMembersDoNotDiffer) {
  const Member members[] = {{0, "n1", identity("1a2b", "AVX2")}, {1, "n2", identity("1a2b", "AVX2")}};
  EXPECT_EQ(identity_differences(members, false), "");
  EXPECT_EQ(identity_differences({}, false), "");
}

TEST(Identity, NamesRankHostFieldAndBothValues) {
  const Member members[] = {{0, "n1", identity("1a2b", "AVX2")}, {1, "n1", identity("1a2b", "AVX2")}, {2, "n2", identity("3c4d", "AVX2")}};
  for (bool mixed : {false, true}) {
    const std::string text = identity_differences(members, mixed);
    EXPECT_NE(text.find("rank 2 on n2: commit 3c4d, not 1a2b"), std::string::npos) << text;
    EXPECT_EQ(text.find("rank 1"), std::string::npos) << text;
    EXPECT_EQ(text.find("version"), std::string::npos) << text;
  }
}

TEST(Identity, AFieldThatOneLacksDiffers) {
  Identity less = identity("1a2b", "AVX2");
  less.erase(less.begin());
  const Member members[] = {{0, "n1", identity("1a2b", "AVX2")}, {1, "n2", less}};
  EXPECT_NE(identity_differences(members, true).find("rank 1 on n2: version nothing, not 1"), std::string::npos);
  const Member turned[] = {members[1], members[0]};
  EXPECT_NE(identity_differences(turned, true).find("rank 0 on n1: version 1, not nothing"), std::string::npos);
}

TEST(Identity, ProcessorsMayDifferWhereThatIsAllowed) {
  const Member members[] = {{0, "n1", identity("1a2b", "AVX2")}, {1, "n2", identity("1a2b", "AVX512_CORE")}};
  EXPECT_EQ(identity_differences(members, true), "");
  const std::string text = identity_differences(members, false);
  EXPECT_NE(text.find("rank 1 on n2: instructions AVX512_CORE, not AVX2"), std::string::npos) << text;
  EXPECT_NE(text.find("topology.mixed_processors"), std::string::npos) << text;
}

TEST(Identity, TheDigestIsThatOfTheRunningFile) {
  std::ifstream in("/proc/self/exe", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}}, id = build_id();
  if (id.empty()) {
    EXPECT_EQ(program_digest(), hash_text(bytes));
    return;
  }
  EXPECT_EQ(id.size(), 20u);
  EXPECT_NE(bytes.find(std::string("\x14\0\0\0\x03\0\0\0GNU\0", 12) + id), std::string::npos);
  EXPECT_EQ(program_digest(), hash_text(id + " " + std::to_string(bytes.size())));
}

}  // namespace
}  // namespace tessera::identity_test
