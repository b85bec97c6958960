// Digests: known values, streams equal wholes, text both ways.
#include "base/hash.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace tessera::hash_test {
namespace {

TEST(Hash, KnownValues) {
  // From the reference implementation of XXH3-128: checkpoints written today must verify for ever.
  EXPECT_EQ(hash_text("").hex(), "99aa06d3014798d86001c324468d497f");
}

TEST(Hash, PiecesOfAnySizeEqualTheWhole) {
  std::mt19937 random(3);
  std::vector<unsigned char> data(5000);
  for (auto& byte : data) byte = static_cast<unsigned char>(random());
  for (int trial = 0; trial < 50; ++trial) {
    Hasher hasher;
    for (std::size_t at = 0; at < data.size();) {
      const std::size_t n = std::min<std::size_t>(data.size() - at, random() % 700);
      hasher.update(data.data() + at, n);
      at += n;
    }
    ASSERT_EQ(hasher.digest(), hash_bytes(data.data(), data.size()));
    ASSERT_EQ(hasher.digest(), hasher.digest()) << "reading a digest changes it";
  }
}

TEST(Hash, EveryBitCounts) {
  std::vector<unsigned char> data(64, 0);
  const Hash128 zero = hash_bytes(data.data(), data.size());
  for (std::size_t bit = 0; bit < 8 * data.size(); ++bit) {
    data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
    EXPECT_FALSE(hash_bytes(data.data(), data.size()) == zero);
    data[bit / 8] ^= static_cast<unsigned char>(1u << bit % 8);
  }
}

TEST(Hash, TextBothWays) {
  const Hash128 hash{0x0123456789abcdefull, 0x00000000000000ffull};
  EXPECT_EQ(hash.hex(), "0123456789abcdef00000000000000ff");
  Hash128 back;
  ASSERT_TRUE(parse_hash(hash.hex(), back));
  EXPECT_EQ(back, hash);
  for (const char* bad :
       {"", "0123", "0123456789abcdef00000000000000f", "0123456789abcdef00000000000000fff", "0123456789abcdef00000000000000fg",
        "-123456789abcdef00000000000000ff", "0x23456789abcdef00000000000000ff", " 123456789abcdef00000000000000ff"})
    EXPECT_FALSE(parse_hash(bad, back)) << bad;
}

}  // namespace
}  // namespace tessera::hash_test
