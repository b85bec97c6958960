#include "io/safetensors/safetensors.hpp"
#include "io/safetensors/safetensors_model.hpp"

#include <random>
#include "base/json.hpp"

#include "../scratch.hpp"

namespace tessera::io::test::safetensors_test {
using namespace tessera::test;
namespace {

std::vector<SafetensorsEntry> some_entries() {
  return {{"model.embed_tokens.weight", DType::f32, {2701, 913}},
          {"model.norm.weight", DType::bf16, {33}},
          {"scale", DType::f32, Shape()},
          {"half", DType::f16, {5}}};
}

std::vector<std::byte> some_bytes(std::size_t n) {
  std::mt19937 engine(9);
  std::vector<std::byte> v(n);
  for (auto& b : v) b = static_cast<std::byte>(engine());
  return v;
}

TEST(Safetensors, HoldFloatTypesAlone) {
  Scratch dir;
  for (const DType type : {DType::i64, DType::u16, DType::u32}) {
    const std::string why = error_of(ExitCode::internal, [&] { SafetensorsWriter(dir / "m.safetensors", {{"a", type, {3}}}); });
    EXPECT_TRUE(has(why, "safetensors of " + std::string(name_of(type)))) << why;
  }
}

TEST(Safetensors, RoundTripInPieces) {
  Scratch dir;
  auto bytes = some_bytes(2701 * 913 * 4 + 33 * 2 + 4 + 5 * 2);
  {
    SafetensorsWriter w(dir / "m.safetensors", some_entries());
    std::mt19937 engine(2);
    for (std::size_t at = 0; at < bytes.size();) {
      auto n = std::min<std::size_t>(engine() % 100000, bytes.size() - at);
      w.append(std::span(bytes).subspan(at, n));
      at += n;
    }
    EXPECT_FALSE(fs::exists(dir / "m.safetensors"));
    const Hash128 digest = w.finish();
    const std::string file = slurp(dir / "m.safetensors");
    EXPECT_EQ(digest, hash_bytes(file.data(), file.size()));
  }
  EXPECT_FALSE(fs::exists(dir / "m.safetensors.partial"));
  auto tensors = read_safetensors_header(dir / "m.safetensors");
  ASSERT_EQ(tensors.size(), 4u);
  std::size_t at = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(tensors[i].name, some_entries()[i].name);
    EXPECT_EQ(tensors[i].type, row_of(some_entries()[i].dtype).safetensors);
    EXPECT_EQ(tensors[i].shape, some_entries()[i].shape);
    auto got = read_safetensors_tensor(dir / "m.safetensors", tensors[i]);
    EXPECT_TRUE(std::equal(got.begin(), got.end(), bytes.begin() + static_cast<std::ptrdiff_t>(at)));
    at += got.size();
  }
  EXPECT_EQ(at, bytes.size());
  // The format's own rules: length, padding to 8, metadata.
  auto file = slurp(dir / "m.safetensors");
  std::uint64_t length;
  std::memcpy(&length, file.data(), 8);
  EXPECT_EQ(length % 8, 0u);
  EXPECT_EQ(file.size(), 8 + length + bytes.size());
  auto header = Json::parse(file.substr(8, length));
  EXPECT_EQ(header["__metadata__"]["format"], "pt");
  EXPECT_EQ(header["model.norm.weight"]["dtype"], "BF16");
  EXPECT_EQ(header["scale"]["shape"].size(), 0u);
}

TEST(Safetensors, NothingIsLeftUnlessFinished) {
  Scratch dir;
  {
    SafetensorsWriter w(dir / "m.safetensors", some_entries());
    w.append(some_bytes(100));
    error_of(ExitCode::internal, [&] { w.finish(); });
    error_of(ExitCode::internal, [&] { w.append(some_bytes(2701 * 913 * 4 + 1000)); });
  }
  EXPECT_TRUE(fs::is_empty(dir.path()));
  EXPECT_HAS(error_of(ExitCode::storage, [&] { SafetensorsWriter w(dir / "no/m.safetensors", some_entries()); }), "No such file");
}

TEST(Safetensors, SplitAndIndex) {
  std::vector<SafetensorsEntry> entries;
  for (int i = 0; i < 5; ++i) entries.push_back({fmt::format("t{}", i), DType::bf16, {100}});  // 200 bytes each
  EXPECT_EQ(plan_safetensors(entries, 1000).size(), 1u);
  EXPECT_EQ(plan_safetensors(entries, 1000)[0].name, "model.safetensors");
  auto files = plan_safetensors(entries, 450);
  ASSERT_EQ(files.size(), 3u);
  EXPECT_EQ(files[1].name, "model-00002-of-00003.safetensors");
  EXPECT_EQ(files[1].entries[0].name, "t2");
  EXPECT_EQ(plan_safetensors(entries, 10).size(), 5u);  // a tensor larger than the limit has a file of its own
  auto index = Json::parse(safetensors_index(files));
  EXPECT_EQ(index["metadata"]["total_size"], 1000);
  EXPECT_EQ(index["weight_map"]["t4"], "model-00003-of-00003.safetensors");
}

TEST(Safetensors, DamagedFiles) {
  Scratch dir;
  auto path = dir / "m.safetensors";
  auto refused = [&](const std::string& bytes) {
    spill(path, bytes);
    auto text = error_of(ExitCode::data, [&] { read_safetensors_header(path); });
    EXPECT_HAS(text, "m.safetensors");
    return text;
  };
  SafetensorsWriter w(path, {{"a", DType::f32, {4}}});
  w.append(some_bytes(16));
  w.finish();
  auto good = slurp(path);
  refused("");
  refused("abc");
  refused(std::string(8, '\xff'));
  EXPECT_HAS(refused(good.substr(0, good.size() - 1)), "truncated inside tensor a");
  refused(good.substr(0, 40));
  auto other = [&](const std::string& from, const std::string& to) {
    auto text = good;
    text.replace(text.find(from), from.size(), to);
    return refused(text);
  };
  EXPECT_HAS(other("\"F32\"", "\"I64\""), "do not fit its shape");
  EXPECT_HAS(other("\"F32\"", "\"F31\""), "type F31");
  EXPECT_HAS(other("[4]", "[5]"), "do not fit its shape");
  other("[4]", "[x]");
  other("[0,16]", "[0,-1]");
  std::mt19937 engine(4);
  for (int i = 0; i < 500; ++i) {  // any header: an Error or a tensor inside the file
    auto text = good;
    text[engine() % text.size()] ^= static_cast<char>(1 << engine() % 8);
    spill(path, text);
    try {
      for (auto& t : read_safetensors_header(path)) EXPECT_LE(t.end, static_cast<std::int64_t>(text.size()));
    } catch (const Error& e) {
      EXPECT_EQ(e.code, ExitCode::data);
    }
  }
}

}  // namespace
}  // namespace tessera::io::test::safetensors_test
