// Which data a checkpoint is of, held against other data.
#include "train/data/data_identity.hpp"

#include <gtest/gtest.h>

#include "../scratch.hpp"
#include "io/checkpoint/format.hpp"

namespace tessera::data_identity_test {
namespace {

io::CheckpointData file(const std::string& path, char digit, std::int64_t tokens = 100, const std::string& documents = "") {
  return {.path = path, .digest = std::string(32, digit), .tokens = tokens, .token_bytes = 2, .bytes = 2 * tokens, .documents = documents};
}

TEST(DataIdentity, IsWhatFilesHoldInTheirOrder) {
  using Files = std::vector<io::CheckpointData>;
  const struct {
    std::string what;
    Files there, here;
    std::vector<std::string> says;  ///< of each difference
  } cases[] = {
      {"the same", {file("a", '1')}, {file("a", '1')}, {}},
      {"another path", {file("a", '1'), file("b", '2')}, {file("c", '1'), file("d/b", '2')}, {}},
      {"other data under the same path", {file("a", '1')}, {file("a", '2')}, {"file 1 was a: 100 tokens of 16 bits, digest 1111"}},
      {"appended", {file("a", '1')}, {file("a", '2', 101)}, {"and is a: 101 tokens"}},
      {"one of a mixture exchanged", {file("a", '1'), file("b", '2')}, {file("a", '1'), file("b", '3')}, {"file 2 was b"}},
      {"one more", {file("a", '1')}, {file("a", '1'), file("b", '2')}, {"file 2 was missing, and is b"}},
      {"one less", {file("a", '1'), file("b", '2')}, {file("a", '1')}, {"file 2 was b: 100 tokens of 16 bits, digest 2222"}},
      {"another order",
       {file("a", '1'), file("b", '2')},
       {file("b", '2'), file("a", '1')},
       {"file 1 was a", "file 2 was b", "the same files in another order"}},
      {"other documents", {file("a", '1', 100, "x")}, {file("a", '1', 100, "y")}, {"documents y"}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.what);
    const std::vector<std::string> found = data_differences(c.there, c.here);
    ASSERT_EQ(found.size(), c.says.size());
    for (std::size_t k = 0; k < found.size(); ++k) EXPECT_HAS(found[k], c.says[k]);
  }
}

/// What an index holds of it comes back, and an older one has none.
TEST(DataIdentity, LiesInTheIndex) {
  io::IndexDirectory index;
  index.meta.deck = "d", index.meta.data = {file("a", '1'), file("b\xff", '2', 7, "z")};
  index.layout.units = {{"u", 4}}, index.layout.tensors = {{"t", {4}, 0, 0}}, index.layout.groups = {"master"};
  index.files = {Hash128{}};
  const auto back = io::parse_index_directory(io::write_directory(index), "x").meta.data;
  ASSERT_EQ(back.size(), 2u);
  for (std::size_t k = 0; k < 2; ++k) EXPECT_TRUE(back[k].holds_the_same(index.meta.data[k]));
  EXPECT_EQ(back[1].bytes, 14);
  index.meta.data.clear();
  EXPECT_TRUE(io::parse_index_directory(io::write_directory(index), "x").meta.data.empty());
  EXPECT_EQ(io::write_directory(index).find("\"data\""), std::string::npos) << "as before";
}

}  // namespace
}  // namespace tessera::data_identity_test
