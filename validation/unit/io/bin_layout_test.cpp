// What a token file is, by its bytes: ids of other types, other formats and wrong names are refused or taken for what they are.
#include "io/tokens/bin_layout.hpp"

#include <cmath>
#include <random>

#include "../scratch.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io::test::bin_layout_test {
using namespace tessera::test;
namespace {

template <class T>
std::string as(const std::vector<std::uint32_t>& ids) {
  std::string bytes;
  for (const std::uint32_t id : ids) {
    const T value = static_cast<T>(id);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  return bytes;
}

/// Ids as often as words of a text: the k-th most frequent about 1/k as often as the first.
std::vector<std::uint32_t> text_like(std::size_t count, std::uint32_t vocab, std::uint64_t seed, std::uint32_t first = 0) {
  std::mt19937_64 engine(seed);
  std::vector<std::uint32_t> ids;
  for (std::size_t i = 0; i < count; ++i) {
    const double u = static_cast<double>(engine() >> 11) * 0x1p-53;
    ids.push_back(std::min(vocab - 1, first + static_cast<std::uint32_t>(std::exp(u * std::log(vocab))) - 1));
  }
  return ids;
}

/// "" where it is taken, else the refusal.
std::string refusal_of(const std::string& path, BinIds bin_ids = BinIds::automatic) {
  try {
    const TokenFile file(path, bin_ids);
    return "";
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::data);
    return error.what();
  }
}

TEST(BinIds, OfOtherTypesAreRefusedUntilTheDeckSaysThem) {
  Scratch dir;
  const struct {
    std::string type;
    std::string (*make)(const std::vector<std::uint32_t>&);
    std::string says;
  } types[] = {{"int64", as<std::int64_t>, "64 bits (int64)"},
               {"uint32", as<std::uint32_t>, "32 bits"},
               {"float32", as<float>, "float32"},
               {"float64", as<double>, "float64"}};
  for (const auto& type : types)
    for (const std::uint32_t vocab : {10u, 257u, 50257u, 128256u})
      for (const std::size_t count : {300u, 5001u, 100000u}) {
        SCOPED_TRACE(fmt::format("{} of {} ids of {}", type.type, count, vocab));
        spill(dir / "a.bin", type.make(text_like(count, vocab, count)));
        const std::string why = refusal_of(dir / "a.bin");
        EXPECT_HAS(why, "a.bin: it looks like ids of " + type.says);
        EXPECT_HAS(why, "data.bin_ids = \"uint16\"");
        EXPECT_EQ(refusal_of(dir / "a.bin", BinIds::uint16), "");
      }
  const auto ids = text_like(5000, 128256, 3);
  spill(dir / "a.bin", as<std::uint32_t>(ids));
  const TokenFile wide(dir / "a.bin", BinIds::uint32);
  ASSERT_EQ(wide.tokens(), 5000);
  std::vector<std::int32_t> got(5000);
  wide.read(0, got, 128256);
  EXPECT_TRUE(std::ranges::equal(got, ids, {}, [](std::int32_t id) { return static_cast<std::uint32_t>(id); }));
  spill(dir / "a.bin", as<std::uint32_t>(ids) + "ab");
  EXPECT_HAS(refusal_of(dir / "a.bin", BinIds::uint32), "are not whole uint32 tokens");
}

/// Real ids of 16 bits, and odd ones: none is refused.
TEST(BinIds, OfSixteenBitsAreTaken) {
  Scratch dir;
  const auto taken = [&](const std::string& what, const std::vector<std::uint32_t>& ids) {
    spill(dir / "a.bin", as<std::uint16_t>(ids));
    EXPECT_EQ(refusal_of(dir / "a.bin"), "") << what;
  };
  for (const std::uint32_t vocab : {2u, 3u, 10u, 257u, 1000u, 32000u, 50257u, 65536u})
    for (const std::size_t count : {1u, 63u, 64u, 130u, 1000u, 4096u, 100001u, 100002u}) {
      taken(fmt::format("{} of {}", count, vocab), text_like(count, vocab, vocab + count));
      std::mt19937 engine(7);
      std::vector<std::uint32_t> even(count);
      for (auto& id : even) id = engine() % vocab;
      taken(fmt::format("{} of {}, each as often", count, vocab), even);
    }
  taken("nothing but padding", std::vector<std::uint32_t>(100000, 0));
  taken("one id", std::vector<std::uint32_t>(100000, 7));
  taken("few ids, large", text_like(100000, 65536, 5, 60000));
  std::vector<std::uint32_t> padded = text_like(100000, 50257, 4);
  std::fill(padded.begin() + 200, padded.end(), 0);
  taken("padding after 200 tokens", padded);
  std::vector<std::uint32_t> separated = text_like(100000, 50257, 4);
  for (std::size_t i = 1; i < separated.size(); i += 2) separated[i] = 50256;
  taken("every second is the end of a document", separated);
}

TEST(BinIds, ATextAndAnArrayAreNone) {
  Scratch dir;
  std::string text;
  for (int i = 0; i < 200; ++i) text += fmt::format("{{\"text\": \"line {} caf\xc3\xa9\"}}\n", i);
  spill(dir / "a.bin", text.substr(0, text.size() / 2 * 2));
  EXPECT_HAS(refusal_of(dir / "a.bin"), "a.bin: it looks like text");
  EXPECT_EQ(refusal_of(dir / "a.bin", BinIds::uint16), "");
  for (const std::string type : {"<u2", "<u4", "<i8"}) {
    std::string head = "\x93NUMPY\x01" + std::string(1, '\0') + "v" + std::string(1, '\0') + "{'descr': '" + type +
                       "', 'fortran_order': False, 'shape': (400,), }";
    head.resize(127, ' ');
    spill(dir / "a.bin", head + "\n" + as<std::uint16_t>(text_like(400, 257, 1)));
    fs::copy_file(dir / "a.bin", dir / "a.npy", fs::copy_options::overwrite_existing);
    for (const BinIds ids : {BinIds::automatic, BinIds::uint16, BinIds::uint32}) {
      const std::string why = refusal_of(dir / "a.bin", ids);
      EXPECT_HAS(why, "this is an array of NumPy");
      EXPECT_EQ(has(why, "data.bin_ids = \"uint32\""), type != "<u2") << why;
    }
  }
}

/// By the signature, whatever the name says.
TEST(BinIds, ANameDoesNotDecideWhatAFileIs) {
  Scratch dir;
  spill(dir / "a.txt", "some text of which tokens are made");
  tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir.path()});
  std::int32_t header[256] = {20240520, 1, 300};
  spill(dir / "headed.bin", std::string(reinterpret_cast<const char*>(header), sizeof header) + as<std::uint16_t>(text_like(300, 257, 1)));
  spill(dir / "plain.bin", as<std::uint16_t>(text_like(300, 257, 1)));
  spill(dir / "blocked.h5", std::string(512, '\0') + slurp(dir / "train.h5"));
  for (const std::string name : {"a.h5", "a.hdf5", "a.bin", "a.tokens", "a"}) {
    SCOPED_TRACE(name);
    const auto as_name = [&](const std::string& of) { fs::copy_file(dir / of, dir / name, fs::copy_options::overwrite_existing); };
    as_name("train.h5");
    EXPECT_EQ(TokenFile(dir / name).tokens(), 34);
    as_name("headed.bin");
    EXPECT_EQ(TokenFile(dir / name).tokens(), 300);
    as_name("plain.bin");
    const std::string why = refusal_of(dir / name);
    if (name == "a.bin") {
      EXPECT_EQ(why, "");
    } else {
      EXPECT_HAS(why, ".bin");
    }
  }
  EXPECT_TRUE(has_hdf5_signature(PosixFile::open(dir / "blocked.h5", ExitCode::data)));
}

}  // namespace
}  // namespace tessera::io::test::bin_layout_test
