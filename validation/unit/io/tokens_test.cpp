// Token files: what is read is what was written, and bad input is refused by place.
#include "io/tokens/tokens.hpp"

#include <random>

#include "../scratch.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokens/utf8.hpp"

namespace tessera::io::test {
using namespace tessera::test;
namespace {

std::string bytes_of(const TokenFile& f) {  // separators as '|'
  std::vector<std::int32_t> ids(static_cast<std::size_t>(f.tokens()));
  f.read(0, ids, 257);
  std::string s;
  for (auto id : ids) s += id == 256 ? '|' : static_cast<char>(id);
  return s;
}

std::vector<std::int64_t> starts_of(const std::string& path) {
  auto d = hdf5::File::open(path, ExitCode::data).open_dataset("documents");
  std::vector<std::int64_t> v(static_cast<std::size_t>(d.elements()));
  d.read<std::int64_t>(0, v);
  return v;
}

TEST(Tokenize, TextIsOneDocument) {
  Scratch dir;
  std::string text = "In the beginning \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\r\n\tend";
  spill(dir / "a.txt", text);
  auto r = tokenize({.input = dir / "a.txt", .output_dir = dir / "out/data"});
  EXPECT_EQ(r.train_tokens, static_cast<std::int64_t>(text.size()));
  EXPECT_EQ(r.validation_tokens, 0);
  EXPECT_EQ(r.documents, 1);
  EXPECT_EQ(r.vocab, 257);
  TokenFile f(dir / "out/data/train.h5");
  EXPECT_EQ(bytes_of(f), text);
  EXPECT_EQ(f.declared_vocab(), 257);
  EXPECT_EQ(f.tokenizer(), "byte");
  EXPECT_EQ(f.documents(), 1);
  EXPECT_FALSE(fs::exists(dir / "out/data/val.h5"));
}

TEST(Tokenize, SplitOfOneDocumentIsTheTailAtACharacter) {
  Scratch dir;
  std::string text;
  for (int i = 0; i < 700000; ++i) text += "\xe2\x82\xac";  // 2.1 MB of three-byte characters: several pieces and chunks
  text += "abc";
  spill(dir / "a.txt", text);
  auto r = tokenize({.input = dir / "a.txt", .output_dir = dir.path(), .validation = 0.1});
  EXPECT_EQ(r.train_tokens + r.validation_tokens, static_cast<std::int64_t>(text.size()));
  EXPECT_NEAR(static_cast<double>(r.validation_tokens), 0.1 * static_cast<double>(text.size()), 3);
  EXPECT_EQ(r.train_tokens % 3, 0);
  EXPECT_EQ(bytes_of(TokenFile(dir / "train.h5")) + bytes_of(TokenFile(dir / "val.h5")), text);
  TokenFile f(dir / "train.h5");
  std::mt19937 engine(1);
  for (int k = 0; k < 50; ++k) {  // windows, also across chunks
    auto a = engine() % text.size() / 2, n = engine() % 3000 % (text.size() / 2);
    std::vector<std::int32_t> ids(n);
    f.read(static_cast<std::int64_t>(a), ids, 257);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(ids[i], static_cast<unsigned char>(text[a + i]));
  }
}

TEST(Tokenize, JsonLines) {
  Scratch dir;
  spill(dir / "a.jsonl",
        "{\"text\": \"one\"}\n\n{\"id\": 3, \"text\": \"two\\n\\u20ac\"}\r\n{\"text\": \"\"}\n{\"text\":\"three\"}\n{\"text\":\"four\"}");
  auto r = tokenize({.input = dir / "a.jsonl", .output_dir = dir.path(), .validation = 0.5});
  EXPECT_EQ(r.documents, 4);
  EXPECT_EQ(bytes_of(TokenFile(dir / "train.h5")), "one|two\n\xe2\x82\xac");
  EXPECT_EQ(bytes_of(TokenFile(dir / "val.h5")), "three|four");
  EXPECT_EQ(starts_of(dir / "train.h5"), (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(starts_of(dir / "val.h5"), (std::vector<std::int64_t>{0, 6}));
  EXPECT_EQ(r.train_tokens, 11);
  EXPECT_EQ(r.validation_tokens, 10);
}

/// Refused, and the output folder is as it was.
void expect_refused(const std::string& name, const std::string& content, const std::vector<std::string>& says, double validation = 0) {
  Scratch dir;
  spill(dir / name, content);
  auto text = error_of(ExitCode::data, [&] { tokenize({.input = dir / name, .output_dir = dir / "out", .validation = validation}); });
  EXPECT_HAS(text, dir / name);
  for (auto& s : says) EXPECT_HAS(text, s);
  EXPECT_FALSE(fs::exists(dir / "out"));
}

TEST(Tokenize, Refusals) {
  expect_refused("a.txt", "", {"holds no text"});
  expect_refused("a.jsonl", "\n\n{\"text\":\"\"}\n", {"holds no text"});
  expect_refused("a.txt", "fine\nnot \xff fine", {"a.txt:2:", "byte offset 9", "0xff"});
  expect_refused("a.txt", "cut \xe2\x82", {"a.txt:1:", "byte offset 4", "ends inside"});
  expect_refused("a.txt", std::string(2000000, '\n') + "\xc0\x80", {":2000001:", "byte offset 2000000", "0xc0"});
  expect_refused("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"\xed\xa0\x80\"}\n", {"a.jsonl:2:", "byte offset 22", "0xa0"});
  expect_refused("a.jsonl", "{\"text\":\"a\"}\n{\"text\": \"b\"\n", {"a.jsonl:2:", "broken JSON at byte"});
  expect_refused("a.jsonl", "{\"text\":\"a\"}\n{\"txt\": \"b\"}\n", {"a.jsonl:2:", "no \"text\""});
  expect_refused("a.jsonl", "{\"text\": 5}\n", {"a.jsonl:1:", "no string"});
  expect_refused("a.jsonl", "[1]\n", {"a.jsonl:1:", "no JSON object"});
  expect_refused("a.txt", "x", {"cannot be split"}, 0.5);
  Scratch dir;
  EXPECT_HAS(error_of(ExitCode::data, [&] { tokenize({.input = dir / "none", .output_dir = dir.path()}); }), "No such file");
  spill(dir / "a.txt", "x");
  EXPECT_HAS(error_of(ExitCode::usage, [&] { tokenize({.tokenizer = "bpe", .input = dir / "a.txt", .output_dir = dir.path()}); }), "byte");
  EXPECT_HAS(error_of(ExitCode::usage, [&] { tokenize({.input = dir / "a.txt", .output_dir = dir.path(), .validation = 1.0}); }), "[0, 1)");
  // A write that fails takes its temporaries with it.
  fs::create_directory(dir / "out");
  fs::create_directory(dir / "out/val.h5.partial");
  spill(dir / "a.txt", "xyz");
  error_of(ExitCode::storage, [&] { tokenize({.input = dir / "a.txt", .output_dir = dir / "out", .validation = 0.4}); });
  EXPECT_FALSE(fs::exists(dir / "out/train.h5"));
  EXPECT_FALSE(fs::exists(dir / "out/train.h5.partial"));
}

TEST(Utf8, EveryByteInEveryPiece) {
  struct {
    std::string text;
    std::int64_t fault;  // offset, -1: fine
  } cases[] = {{"plain", -1},
               {"\xc3\xa9", -1},
               {"\xed\x9f\xbf", -1},
               {"\xee\x80\x80", -1},
               {"\xf4\x8f\xbf\xbf", -1},
               {"\xf4\x90\x80\x80", 0},
               {"a\xed\xa0\x80", 1},
               {"\xe0\x9f\xbf", 0},
               {"\xc1\xbf", 0},
               {"\xf0\x8f\xbf\xbf", 0},
               {"abcdefgh\x80", 8},
               {"ab\xe2\x82"
                "c",
                2},
               {"\xf5\x80\x80\x80", 0},
               {"12345678\xf0\x9f", 8}};
  for (auto& c : cases)
    for (std::size_t cut = 0; cut <= c.text.size(); ++cut) {
      Utf8Checker checker;
      auto fault = checker.feed(std::string_view(c.text).substr(0, cut));
      if (!fault) fault = checker.feed(std::string_view(c.text).substr(cut));
      if (!fault) fault = checker.finish();
      EXPECT_EQ(fault ? fault->offset : -1, c.fault) << c.text << " cut at " << cut;
    }
}

TEST(TokenFile, PlainBin) {
  Scratch dir;
  std::vector<std::uint16_t> ids(1000);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * 60);
  std::string raw(reinterpret_cast<char*>(ids.data()), ids.size() * 2);
  spill(dir / "nano.bin", raw);
  std::int32_t header[256] = {20240520, 1, 1000};
  std::string head(reinterpret_cast<char*>(header), sizeof header);
  spill(dir / "llmc.bin", head + raw);
  for (std::string name : {"nano.bin", "llmc.bin"}) {
    TokenFile f(dir / name);
    EXPECT_EQ(f.tokens(), 1000);
    EXPECT_EQ(f.documents(), 0);
    EXPECT_EQ(f.declared_vocab(), 0);
    std::vector<std::int32_t> got(990);
    f.read(7, got, 60000);
    for (std::size_t i = 0; i < got.size(); ++i) ASSERT_EQ(got[i], static_cast<std::int32_t>((i + 7) * 60));
    auto text = error_of(ExitCode::data, [&] { f.read(7, got, 50257); });
    EXPECT_HAS(text, name);
    EXPECT_HAS(text, "token 50280 at position 838 is outside the vocabulary of 50257");
  }
  spill(dir / "llmc.bin", head + raw.substr(2));
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile f(dir / "llmc.bin"); }), "truncated");
  spill(dir / "nano.bin", raw.substr(1));
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile f(dir / "nano.bin"); }), "truncated");
  spill(dir / "nano.bin", "");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile f(dir / "nano.bin"); }), "no tokens");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile f(dir / "gone.bin"); }), "No such file");
  spill(dir / "a.txt", "text");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile f(dir / "a.txt"); }), "tessera tokenize");
}

TEST(TokenFile, Hdf5OfOthers) {
  Scratch dir;
  {
    auto f = hdf5::File::create(dir / "a.h5", {}, ExitCode::storage);
    auto d = f.create_contiguous("tokens", hdf5::Element::u32, {3});
    f.create_contiguous("nothing", hdf5::Element::f32, {3});
    auto at = d.raw_offset();
    d = f.create_extendible("more", hdf5::Element::f32, 4);
    f.close();
    std::uint32_t ids[3] = {5, 128255, 4000000000u};
    std::fstream out(dir / "a.h5", std::ios::binary | std::ios::in | std::ios::out);
    out.seekp(at);
    out.write(reinterpret_cast<char*>(ids), sizeof ids);
  }
  std::vector<std::int32_t> got(2);
  {
    TokenFile f(dir / "a.h5");
    EXPECT_EQ(f.tokens(), 3);
    f.read(0, got, 128256);
    EXPECT_EQ(got, (std::vector<std::int32_t>{5, 128255}));
    EXPECT_HAS(error_of(ExitCode::data, [&] { f.read(1, got, 128256); }), "token 4000000000 at position 2");
  }
  auto whole = slurp(dir / "a.h5");
  spill(dir / "a.h5", whole.substr(0, whole.size() - 100));
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile t(dir / "a.h5"); }), "a.h5");
  spill(dir / "a.h5", "this is no HDF5 file");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile t(dir / "a.h5"); }), "a.h5: cannot open as HDF5");
  {
    auto empty = hdf5::File::create(dir / "b.h5", {}, ExitCode::storage);
    empty.create_contiguous("Tokens", hdf5::Element::u16, {3});
    empty.close();
  }
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile t(dir / "b.h5"); }), "no dataset 'tokens'");
}

}  // namespace
}  // namespace tessera::io::test
