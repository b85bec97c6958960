// Token files: what is read is what was written or checked, and all else is refused.
#include <hdf5.h>
#include <sys/stat.h>

#include <cmath>
#include <cstring>
#include <random>

#include "../scratch.hpp"
#include "io/hdf5/hdf5.hpp"
#include "io/tokens/tokens.hpp"

/// HDF5 1.10 loses what it had read of an object's header when the rest of it turns out to be damaged. The leak is the library's own, a few
/// hundred bytes in a command that then ends.
extern "C" const char* __lsan_default_suppressions() { return "leak:libhdf5\n"; }  // NOLINT

namespace tessera::io::test::token_file_test {
using namespace tessera::test;
namespace {

constexpr std::int64_t vocab = 257;

std::vector<std::int32_t> all_of(const TokenFile& f, std::int64_t limit = vocab) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(f.tokens()));
  f.read(0, ids, limit);
  return ids;
}

/// DIR/train.h5 of `bytes` letters, as the command makes it.
std::string tokenized(const Scratch& dir, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>('a' + (i * 7 + i / 1000) % 26);
  spill(dir / "a.txt", text);
  tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir.path()});
  return dir / "train.h5";
}

void flip(const std::string& path, std::size_t at, int bit = 0) {
  auto bytes = slurp(path);
  bytes[at] = static_cast<char>(bytes[at] ^ (1 << bit));
  const auto time = fs::last_write_time(path);
  std::ofstream(path, std::ios::binary | std::ios::in) << bytes;  // in place
  fs::last_write_time(path, time);                                // as a disk does it
}

/// Changes an HDF5 file by the library's own calls.
template <class F>
void with_hdf5(const std::string& path, F&& change) {
  const hid_t access = H5Pcreate(H5P_FILE_ACCESS);
  H5Pset_libver_bounds(access, H5F_LIBVER_V110, H5F_LIBVER_V110);
  const hid_t file =
      fs::exists(path) ? H5Fopen(path.c_str(), H5F_ACC_RDWR, access) : H5Fcreate(path.c_str(), H5F_ACC_EXCL, H5P_DEFAULT, access);
  ASSERT_GE(file, 0);
  change(file);
  H5Pclose(access);
  ASSERT_GE(H5Fclose(file), 0);
}

/// A file as it was before there were checksums.
void make_old(const std::string& path) {
  with_hdf5(path, [](hid_t file) {
    H5Ldelete(file, "tokens.xxh3", H5P_DEFAULT);
    H5Adelete(file, "facts");
    H5Adelete(file, "facts.xxh3");
  });
}

/// What a start does with a file that has no checksums.
void check(TokenFile& f, std::int64_t limit) { f.accept(f.scan(0, f.blocks(), limit)); }

std::string as_bin(const std::vector<std::uint16_t>& ids) { return {reinterpret_cast<const char*>(ids.data()), ids.size() * 2}; }

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
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile f(dir / "gone.bin"); }), "the file is missing");
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

TEST(TokenFile, FactsComeWithTheFile) {
  Scratch dir;
  TokenFile f(tokenized(dir, 3 * block_tokens + 5));
  ASSERT_NE(f.facts(), nullptr);
  EXPECT_EQ(f.facts()->largest_id, 'z');
  EXPECT_EQ(all_of(f)[static_cast<std::size_t>(f.facts()->largest_at)], 'z');
  EXPECT_EQ(f.blocks(), 4);
  EXPECT_EQ(f.scan(0, 4, vocab).content(), f.facts()->content);
  f.require_ids_below('z' + 1);
  EXPECT_HAS(error_of(ExitCode::data, [&] { f.require_ids_below('z'); }), "token 122 at position");
}

TEST(TokenFile, AFlippedTokenIsRefusedByItsBlock) {
  Scratch dir;
  const auto path = tokenized(dir, 3 * block_tokens + 5);
  const auto whole = slurp(path);
  const auto ids = all_of(TokenFile(path));
  std::string narrow;
  for (auto id : ids) narrow += static_cast<char>(id), narrow += '\0';
  const auto at = whole.find(narrow);
  ASSERT_NE(at, std::string::npos);
  flip(path, at + 2 * (block_tokens + 77));  // a letter becomes another one
  TokenFile f(path);
  std::vector<std::int32_t> window(100);
  f.read(block_tokens - 100, window, vocab);  // the end of block 0
  f.read(2 * block_tokens, window, vocab);
  for (std::int64_t begin : {block_tokens - 50, block_tokens, 2 * block_tokens - 100}) {
    auto text = error_of(ExitCode::data, [&] { f.read(begin, window, vocab); });
    EXPECT_HAS(text, path + ": tokens 32768 to 65535 (block 1 of 4)");
    EXPECT_HAS(text, "Restore the file");
  }
}

/// Any byte of the file: what is read is refused or right.
TEST(TokenFile, NoFlippedByteTrains) {
  Scratch dir;
  const auto path = tokenized(dir, 3000);
  const auto whole = slurp(path);
  const auto ids = all_of(TokenFile(path));
  std::mt19937 engine(11);
  int refused = 0;
  for (int k = 0; k < 400; ++k) {
    auto bytes = whole;
    bytes[engine() % bytes.size()] ^= static_cast<char>(1 << engine() % 8);
    spill(path, bytes);
    try {
      TokenFile f(path);
      ASSERT_NE(f.facts(), nullptr);
      EXPECT_EQ(all_of(f), ids);
    } catch (const Error& e) {
      ++refused;
      EXPECT_EQ(e.code, ExitCode::data) << e.what();
    }
  }
  EXPECT_GT(refused, 200);  // most of the file is tokens
}

/// DIR/train.h5 of prompts and completions.
std::string tokenized_pairs(const Scratch& dir, int pairs) {
  std::string lines;
  for (int i = 0; i < pairs; ++i) lines += fmt::format("{{\"prompt\": \"{:05}?\", \"completion\": \"{:07}\"}}\n", i * 37 % 99991, i * 73);
  spill(dir / "a.jsonl", lines);
  tokenize({.inputs = {dir / "a.jsonl"}, .output_dir = dir.path()});
  return dir / "train.h5";
}

/// All tokens, with -1 in the place of those that do not count.
std::vector<std::int32_t> counted_tokens(const TokenFile& f) {
  std::vector<std::int32_t> ids = all_of(f);
  std::vector<float> weights(ids.size(), 1);
  f.drop_uncounted(0, weights);
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (weights[i] == 0) ids[i] = -1;
  return ids;
}

/// Gives the file's attribute "kind" another text.
void make_kind(hid_t file, const char* kind) {
  H5Adelete(file, "kind");
  const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
  H5Tset_size(type, std::strlen(kind));
  const hid_t attribute = H5Acreate2(file, "kind", type, space, H5P_DEFAULT, H5P_DEFAULT);
  ASSERT_GE(H5Awrite(attribute, type, kind), 0);
  H5Aclose(attribute), H5Sclose(space), H5Tclose(type);
}

TEST(TokenFile, ADamagedLossMaskIsRefusedByItsBlock) {
  Scratch dir;
  const auto path = tokenized_pairs(dir, 7000);  // of 13 tokens and one between them
  with_hdf5(path, [](hid_t file) {
    const hid_t mask = H5Dopen2(file, "loss_mask", H5P_DEFAULT);
    std::vector<std::uint8_t> bits(static_cast<std::size_t>(ceil_div(7000 * 14 - 1, 8)));
    ASSERT_GE(H5Dread(mask, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bits.data()), 0);
    EXPECT_EQ(bits[0], 0b11000000) << "six of a prompt, then a completion";
    bits[static_cast<std::size_t>(block_tokens / 8 + 5)] ^= 4;
    ASSERT_GE(H5Dwrite(mask, H5T_NATIVE_UINT8, H5S_ALL, H5S_ALL, H5P_DEFAULT, bits.data()), 0);
    H5Dclose(mask);
  });
  TokenFile f(path);
  std::vector<std::int32_t> window(100);
  f.read(0, window, vocab);
  EXPECT_HAS(error_of(ExitCode::data, [&] { f.read(block_tokens, window, vocab); }), "tokens 32768 to 65535 (block 1 of 3)");
}

/// DIR/train.h5 of these lines of preferences.
std::string tokenized_preferences(const Scratch& dir, const std::string& lines, TokenizeOptions options = {}) {
  spill(dir / "p.jsonl", lines);
  options.inputs = {dir / "p.jsonl"}, options.output_dir = dir.path(), options.preferences = true;
  tokenize(options);
  return dir / "train.h5";
}

constexpr const char* three_pairs =
    R"({"prompt": "ab", "chosen": "c", "rejected": "de", "margin": 0.5}
{"prompt": "f", "chosen": "", "rejected": "g", "score_chosen": 3, "score_rejected": 4.25}
{"prompt": "", "chosen": "h", "rejected": "h", "margin": -2}
)";

TEST(TokenFile, PairsAreChosenAndRejectedDocuments) {
  Scratch dir;
  TokenFile f(tokenized_preferences(dir, three_pairs));
  EXPECT_EQ(f.set(), TokenSet::pairs);
  EXPECT_EQ(f.end_token(), 256);
  EXPECT_EQ(f.read_documents(), (std::vector<std::int64_t>{0, 4, 9, 11, 14, 16}));
  EXPECT_EQ(counted_tokens(f),
            (std::vector<std::int32_t>{-1, -1, 'c', 256, -1, -1, 'd', 'e', 256, -1, 256, -1, 'g', 256, -1, 256, -1, 256}));
  EXPECT_EQ(all_of(f)[16], 'h') << "without a prompt the first token of a completion is given";
  EXPECT_EQ(f.read_margins(), (std::vector<float>{0.5f, -1.25f, -2.0f}));
  EXPECT_EQ(f.facts()->set, TokenSet::pairs);
  TokenFile plain(tokenized_preferences(dir, R"({"prompt": "ab", "chosen": "c", "rejected": "de"})"));
  EXPECT_TRUE(plain.read_margins().empty());
}

TEST(TokenFile, LabelsAreOneADocument) {
  Scratch dir;
  TokenFile f(tokenized_preferences(dir, R"({"prompt": "ab", "completion": "c", "label": true}
{"prompt": "f", "completion": "g", "kto_tag": false, "label": null}
)"));
  EXPECT_EQ(f.set(), TokenSet::labels);
  EXPECT_EQ(f.read_labels(), (std::vector<std::uint8_t>{1, 0}));
  EXPECT_EQ(counted_tokens(f), (std::vector<std::int32_t>{-1, -1, 'c', 256, -1, 'g', 256}));
}

TEST(TokenFile, LongCompletionsAreCutAndLongPromptsLeftOut) {
  Scratch dir;
  spill(dir / "p.jsonl", R"({"prompt": "abc", "chosen": "d", "rejected": "efghi"}
{"prompt": "jklmn", "chosen": "o", "rejected": "p"}
{"prompt": "qrst", "chosen": "u", "rejected": "u"}
)");
  const TokenizeResult result =
      tokenize({.inputs = {dir / "p.jsonl"}, .output_dir = dir.path(), .preferences = true, .longest_sequence = 5});
  EXPECT_EQ(result.preferences.documents, 2);
  EXPECT_EQ(result.preferences.too_long, 1);
  EXPECT_EQ(result.preferences.truncated, 3);
  EXPECT_EQ(result.preferences.equal, 1);
  EXPECT_EQ(result.preferences.chosen_tokens, 3);
  EXPECT_EQ(result.preferences.rejected_tokens, 3);
  const TokenFile f(dir / "train.h5");
  EXPECT_EQ(counted_tokens(f),
            (std::vector<std::int32_t>{-1, -1, -1, 'd', 256, -1, -1, -1, 'e', 'f', -1, -1, -1, -1, 'u', -1, -1, -1, -1, 'u'}));
}

TEST(TokenFile, DamagedPreferencesAreRefused) {
  Scratch dir;
  const auto damaged = [&](const std::string& lines, auto&& change) {
    const std::string path = tokenized_preferences(dir, lines);
    with_hdf5(path, change);
    return path;
  };
  const auto overwrite_set = [](const char* name, hid_t type, const void* values) {
    return [=](hid_t file) {
      const hid_t set = H5Dopen2(file, name, H5P_DEFAULT);
      ASSERT_GE(H5Dwrite(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values), 0);
      H5Dclose(set);
    };
  };
  const float margins[] = {0.5f, -1.25f, 2.0f}, odd[] = {0.5f, NAN, -2.0f};
  EXPECT_HAS(error_of(ExitCode::data,
                      [&] { TokenFile(damaged(three_pairs, overwrite_set("margins", H5T_NATIVE_FLOAT, margins))).read_margins(); }),
             "the dataset 'margins' has changed since the file was written");
  const auto without_digest = [&](hid_t file) { overwrite_set("margins", H5T_NATIVE_FLOAT, odd)(file), H5Adelete(file, "margins.xxh3"); };
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile(damaged(three_pairs, without_digest)).read_margins(); }),
             "pair 1 has the margin nan");
  const std::string labels = R"({"prompt": "ab", "completion": "c", "label": true})";
  const std::uint8_t zero = 0, two = 2;
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile(damaged(labels, overwrite_set("labels", H5T_NATIVE_UINT8, &zero))).read_labels(); }),
             "the dataset 'labels' has changed");
  EXPECT_HAS(error_of(ExitCode::data,
                      [&] {
                        TokenFile(damaged(labels, [&](hid_t file) {
                          overwrite_set("labels", H5T_NATIVE_UINT8, &two)(file), H5Adelete(file, "labels.xxh3");
                        })).read_labels();
                      }),
             "document 0 has the label 2");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile(damaged(labels, [](hid_t file) { H5Ldelete(file, "labels", H5P_DEFAULT); })); }),
             "is of kind \"labels\", but has no dataset 'labels'");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile(damaged(three_pairs, [](hid_t file) { H5Adelete(file, "kind"); })); }),
             "facts and checksums do not match");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile(damaged(labels, [](hid_t file) { make_kind(file, "pairs"); })); }), "an odd number");
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile(damaged(labels, [](hid_t file) { make_kind(file, "grades"); })); }),
             "its attribute 'kind' is \"grades\"");
}

/// Writes over bytes of a file that others have open, and leaves its size and time as they were.
void overwrite(const std::string& path, std::size_t at, const std::string& bytes) {
  const auto time = fs::last_write_time(path);
  std::fstream out(path, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(at));
  out << bytes;
  out.close();
  fs::last_write_time(path, time);
}

/// An open file of each form, all of whose tokens have been read; what they were, with -1 for those that do not count, where the ids and
/// the mask lie, and the bytes of another file of the same form and size.
struct OpenForm {
  std::string name, path;
  std::size_t ids_at = 0, mask_at = 0;
  std::string other = {};
};

std::vector<std::int32_t> counted_of(const TokenFile& f, std::int64_t begin, std::int64_t count) {
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count));
  f.read(begin, ids, 60000);
  std::vector<float> weights(ids.size(), 1);
  f.drop_uncounted(begin, weights);
  for (std::size_t i = 0; i < ids.size(); ++i)
    if (weights[i] == 0) ids[i] = -1;
  return ids;
}

/// The numbers of a dataset as they lie in the file.
std::string raw_of(const std::string& path, const char* name) {
  std::string raw;
  with_hdf5(path, [&](hid_t file) {
    const hid_t set = H5Dopen2(file, name, H5P_DEFAULT), type = H5Dget_type(set), space = H5Dget_space(set);
    raw.resize(H5Tget_size(type) * static_cast<std::size_t>(H5Sget_simple_extent_npoints(space)));
    EXPECT_GE(H5Dread(set, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, raw.data()), 0);
    H5Sclose(space), H5Tclose(type), H5Dclose(set);
  });
  return raw;
}

/// Where the first 64 bytes of a dataset lie in the file.
std::size_t place_of(const std::string& path, const char* name) { return slurp(path).find(raw_of(path, name).substr(0, 64)); }

std::vector<OpenForm> forms(const Scratch& dir) {
  constexpr std::int64_t pairs = 11000;  // of 14 tokens: five blocks
  const auto pairs_of = [&](const std::string& name, int factor) {
    fs::create_directory(dir / name);
    std::string lines;
    for (int i = 0; i < pairs; ++i)
      lines += fmt::format("{{\"prompt\": \"{:05}?\", \"completion\": \"{:07}\"}}\n", i * factor % 99991, i * 73);
    spill(dir / (name + "/a.jsonl"), lines);
    tokenize({.inputs = {dir / (name + "/a.jsonl")}, .output_dir = dir / name});
    return dir / (name + "/train.h5");
  };
  const std::string other = pairs_of("other", 41);
  OpenForm written{.name = "h5 of the command", .path = pairs_of("written", 37)};
  written.ids_at = place_of(written.path, "tokens"), written.mask_at = place_of(written.path, "loss_mask");
  written.other = slurp(other);
  OpenForm old{.name = "h5 that is scanned", .path = dir / "old.h5"};
  fs::copy_file(written.path, old.path), make_old(old.path);
  old.ids_at = place_of(old.path, "tokens"), old.mask_at = place_of(old.path, "loss_mask");
  old.other = written.other;
  OpenForm bin{.name = "bin", .path = dir / "a.bin", .other = raw_of(other, "tokens")};
  spill(bin.path, raw_of(written.path, "tokens"));
  OpenForm headed{.name = "bin of llm.c", .path = dir / "headed.bin", .ids_at = 1024};
  const std::int32_t header[256] = {20240520, 1, pairs * 14 - 1};
  const std::string head(reinterpret_cast<const char*>(header), sizeof header);
  spill(headed.path, head + raw_of(written.path, "tokens"));
  headed.other = head + bin.other;
  return {written, old, bin, headed};
}

/// Whatever is written over an open file whose tokens have all been read before: each window is refused or has the tokens that it had.
TEST(TokenFile, WhatIsWrittenOverAnOpenFileIsRefused) {
  Scratch dir;
  for (const OpenForm& form : forms(dir)) {
    struct Case {
      std::string name;
      std::size_t at;
      std::string bytes;
      std::int64_t first, last;  ///< blocks that are not what they were
    };
    std::vector<Case> cases{{"a token", form.ids_at + 2 * (block_tokens + 70), std::string("\7\0", 2), 1, 1},
                            {"tokens of two blocks", form.ids_at + 2 * (2 * block_tokens - 40), std::string(160, '\0'), 1, 2},
                            {"the whole of another file", 0, form.other, 0, 4}};
    if (form.mask_at > 0) cases.push_back({"a byte of the mask", form.mask_at + block_tokens / 8 + 9, std::string(1, '\0'), 1, 1});
    for (const Case& c : cases) {
      SCOPED_TRACE(form.name + ": " + c.name);
      const std::string whole = slurp(form.path);
      TokenFile f(form.path);
      if (!f.facts()) check(f, 60000);
      const auto before = counted_of(f, 0, f.tokens());
      overwrite(form.path, c.at, c.bytes);
      std::int64_t refused = 0;
      constexpr std::int64_t window = 3000;
      for (int round = 0; round < 2; ++round)  // what was refused once stays refused
        for (std::int64_t at = 0; at + window <= f.tokens(); at += window) {
          const bool touched = (at + window - 1) / block_tokens >= c.first && at / block_tokens <= c.last;
          try {
            const auto got = counted_of(f, at, window);
            EXPECT_TRUE(std::equal(got.begin(), got.end(), before.begin() + at)) << at;
          } catch (const Error& error) {
            ++refused;
            EXPECT_TRUE(touched) << at;
            EXPECT_EQ(error.code, ExitCode::data);
            EXPECT_TRUE(has(error.what(), form.path)) << error.what();
          }
        }
      // A window at least of each block: none of them is in memory from the time when all was read, as the last two may be.
      EXPECT_GE(refused, 2 * (c.last - c.first) + 2);
      overwrite(form.path, 0, whole);
      fs::resize_file(form.path, whole.size());
    }
  }
}

TEST(TokenFile, DamagedDocumentsAreRefused) {
  Scratch dir;
  const auto path = tokenized_pairs(dir, 200);
  const auto begins = TokenFile(path).read_documents();
  ASSERT_EQ(begins.size(), 200u);
  const auto raw = raw_of(path, "documents");
  for (const std::size_t at : {std::size_t{0}, raw.size() / 2, raw.size() - 8}) {
    const std::string whole = slurp(path);
    overwrite(path, whole.find(raw) + at, std::string("\1", 1));
    const TokenFile f(path);
    EXPECT_HAS(error_of(ExitCode::data, [&] { f.read_documents(); }), path + ": the dataset 'documents' has changed since");
    overwrite(path, 0, whole);
  }
  // Files of others say nothing of theirs.
  with_hdf5(path, [](hid_t file) { H5Adelete(file, "documents.xxh3"); });
  EXPECT_EQ(TokenFile(path).read_documents(), begins);
}

TEST(TokenFile, AMaskOfOthersIsCheckedByAScan) {
  Scratch dir;
  const auto path = tokenized_pairs(dir, 6000);
  const TokenFacts facts = *TokenFile(path).facts();
  make_old(path);
  {
    TokenFile f(path);
    ASSERT_EQ(f.facts(), nullptr);
    check(f, vocab);
    EXPECT_EQ(*f.facts(), facts) << "the scan finds what the writer wrote";
    f.keep();
  }
  EXPECT_EQ(*TokenFile(path).facts(), facts);
  const auto with_mask = [&](hid_t type, hsize_t elements) {
    with_hdf5(path, [&](hid_t file) {
      H5Ldelete(file, "loss_mask", H5P_DEFAULT);
      const hid_t space = H5Screate_simple(1, &elements, nullptr), creation = H5Pcreate(H5P_DATASET_CREATE);
      H5Pset_alloc_time(creation, H5D_ALLOC_TIME_EARLY);
      H5Dclose(H5Dcreate2(file, "loss_mask", type, space, H5P_DEFAULT, creation, H5P_DEFAULT));
      H5Pclose(creation), H5Sclose(space);
    });
    return error_of(ExitCode::data, [&] { TokenFile t(path); });
  };
  EXPECT_HAS(with_mask(H5T_STD_U8LE, 77),
             "'loss_mask' must have a bit for each of the 83999 tokens: uint8, one-dimensional, 10500 of them");
  EXPECT_HAS(with_mask(H5T_STD_U16LE, 10500), "must have a bit for each");
}

TEST(TokenFile, WhatIsNotInTheFileIsRefused) {
  Scratch dir;
  struct {
    std::string name, says;
    hsize_t elements, chunk;  // 0: contiguous
  } cases[] = {{"chunks.h5", "8 of its 8 chunks", 8000, 1000},
               {"huge.h5", "chunks are not in the file", hsize_t{1} << 60, 1 << 18},
               {"contiguous.h5", "none of its elements", hsize_t{1} << 60, 0}};
  for (auto& c : cases) {
    with_hdf5(dir / c.name, [&](hid_t file) {
      const hsize_t unlimited = H5S_UNLIMITED;
      const hid_t space = H5Screate_simple(1, &c.elements, c.chunk ? &unlimited : nullptr), creation = H5Pcreate(H5P_DATASET_CREATE);
      if (c.chunk) H5Pset_chunk(creation, 1, &c.chunk);
      H5Dclose(H5Dcreate2(file, "tokens", H5T_STD_U16LE, space, H5P_DEFAULT, creation, H5P_DEFAULT));
      H5Pclose(creation), H5Sclose(space);
    });
    auto text = error_of(ExitCode::data, [&] { TokenFile t(dir / c.name); });
    EXPECT_HAS(text, "'tokens' is not whole: ");
    EXPECT_HAS(text, c.says);
  }
  // More tokens than were written: some in chunks that are there, or none.
  const auto path = tokenized(dir, 5000);
  for (hsize_t more : {hsize_t{5001}, hsize_t{1} << 40}) {
    with_hdf5(path, [&](hid_t file) {
      const hid_t tokens = H5Dopen2(file, "tokens", H5P_DEFAULT);
      EXPECT_GE(H5Dset_extent(tokens, &more), 0);
      H5Dclose(tokens);
    });
    EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile t(path); }), "train.h5: ");
  }
}

/// Each dataset of a file is its own, and no name in it leads elsewhere.
TEST(TokenFile, DatasetsOfOtherFilesAreRefused) {
  Scratch dir;
  const auto whole = tokenized_pairs(dir, 200), path = dir / "links.h5", pipe = dir / "pipe.h5";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const char* name : {"tokens", "documents", "loss_mask", "tokens.xxh3"})
    for (const std::string& other : {whole, pipe})
      for (const bool soft : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, other, soft));
        fs::copy_file(whole, path, fs::copy_options::overwrite_existing);
        with_hdf5(path, [&](hid_t file) {
          H5Ldelete(file, name, H5P_DEFAULT);
          // By itself, or as a group along the path of a link inside the file.
          H5Lcreate_external(other.c_str(), soft ? "/" : name, file, soft ? "there" : name, H5P_DEFAULT, H5P_DEFAULT);
          if (soft) H5Lcreate_soft((std::string("/there/") + name).c_str(), file, name, H5P_DEFAULT, H5P_DEFAULT);
        });
        const std::string why = error_of(ExitCode::data, [&] { TokenFile f(path); });
        EXPECT_HAS(why, path + ": cannot open " + name);
        EXPECT_HAS(why, "a link to another file");
      }
}

TEST(TokenFile, ChunksThatMustBeUnpackedWholeAreNotLarge) {
  Scratch dir;
  constexpr hsize_t largest = hdf5::most_filtered_chunk_bytes;
  struct {
    const char* name;
    hid_t type;
    hsize_t chunk;
    bool packed, taken;
  } cases[] = {{"tokens", H5T_STD_U16LE, largest / 2, true, true},
               {"tokens", H5T_STD_U16LE, largest / 2 + 1, true, false},
               {"tokens", H5T_STD_U32LE, largest / 4 + 1, true, false},
               {"tokens", H5T_STD_U16LE, largest, false, true},  // of one that is not packed a part is read
               {"documents", H5T_STD_I64LE, largest / 8 + 1, true, false},
               {"loss_mask", H5T_STD_U8LE, largest + 1, true, false}};
  for (const auto& c : cases) {
    SCOPED_TRACE(fmt::format("{} in chunks of {}", c.name, c.chunk));
    const std::string path = dir / "packed.h5";
    fs::remove(path);
    with_hdf5(path, [&](hid_t file) {
      const auto make = [&](const char* name, hid_t type, hsize_t chunk, bool packed, hsize_t elements, bool written) {
        const hsize_t most = H5S_UNLIMITED, first = 0, one = 1;
        const hid_t space = H5Screate_simple(1, &elements, &most), creation = H5Pcreate(H5P_DATASET_CREATE);
        H5Pset_chunk(creation, 1, &chunk);
        if (packed) H5Pset_deflate(creation, 1);
        const hid_t set = H5Dcreate2(file, name, type, space, H5P_DEFAULT, creation, H5P_DEFAULT);
        if (written) {  // all of the chunk is made once
          const hid_t inside = H5Screate_simple(1, &one, nullptr);
          const std::int64_t id = 7;
          H5Sselect_hyperslab(space, H5S_SELECT_SET, &first, nullptr, &one, nullptr);
          H5Dwrite(set, H5T_NATIVE_INT64, inside, space, H5P_DEFAULT, &id);
          H5Sclose(inside);
        }
        H5Dclose(set), H5Pclose(creation), H5Sclose(space);
      };
      if (std::string(c.name) != "tokens") make("tokens", H5T_STD_U16LE, 16, false, 8, true);
      make(c.name, c.type, c.chunk, c.packed, std::string(c.name) == "loss_mask" ? 1 : 8, c.taken && c.packed);
    });
    if (c.taken && c.packed) {
      EXPECT_EQ(all_of(TokenFile(path)).front(), 7);
      continue;
    }
    EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile f(path); }),
               c.taken ? "is not whole" : fmt::format("the dataset '{}' is compressed in chunks of", c.name));
  }
}

TEST(TokenFile, AttributesThatAreNoUtf8AreRefused) {
  Scratch dir;
  const auto path = tokenized_pairs(dir, 20);
  const std::string whole = slurp(path);
  for (const char* name : {"tokenizer", "tokenizer.xxh3", "documents.xxh3"})
    for (const bool checksums : {true, false}) {
      spill(path, whole);
      if (!checksums) make_old(path);
      with_hdf5(path, [&](hid_t file) {
        H5Adelete(file, name);
        const hid_t type = H5Tcopy(H5T_C_S1), space = H5Screate(H5S_SCALAR);
        H5Tset_size(type, 3);
        const hid_t attribute = H5Acreate2(file, name, type, space, H5P_DEFAULT, H5P_DEFAULT);
        H5Awrite(attribute, type,
                 "a\xff"
                 "b");
        H5Aclose(attribute), H5Sclose(space), H5Tclose(type);
      });
      EXPECT_HAS(error_of(ExitCode::data,
                          [&] {
                            TokenFile f(path);
                            if (!f.facts()) check(f, vocab);
                          }),
                 path + ": its attribute '" + name + "' is not text in UTF-8");
    }
}

TEST(TokenFile, FactsOfOtherTokensAreRefused) {
  Scratch dir;
  const auto path = tokenized(dir, 5000);
  with_hdf5(path, [](hid_t file) { H5Adelete(file, "facts"); });
  EXPECT_HAS(error_of(ExitCode::data, [&] { TokenFile t(path); }), "remove its dataset 'tokens.xxh3'");
  with_hdf5(path, [](hid_t file) { H5Ldelete(file, "tokens.xxh3", H5P_DEFAULT); });
  EXPECT_EQ(TokenFile(path).facts(), nullptr);
}

TEST(TokenFile, AScanIsKeptBesideTheFile) {
  Scratch dir;
  std::vector<std::uint16_t> ids(2 * block_tokens + 9);
  for (std::size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<std::uint16_t>(i * i % 211);
  const std::string bin = dir / "a.bin", old = tokenized(dir, 2 * block_tokens + 9);
  spill(bin, as_bin(ids));
  make_old(old);
  for (const std::string& path : {bin, old}) {
    {
      TokenFile f(path);
      ASSERT_EQ(f.facts(), nullptr);
      check(f, vocab);
      ASSERT_NE(f.facts(), nullptr);
      EXPECT_EQ(f.facts()->largest_id, path == bin ? 209 : 'z');
      f.keep();
    }
    const auto ids_before = all_of(TokenFile(path));
    ASSERT_NE(TokenFile(path).facts(), nullptr);
    // A damaged side file is as good as none.
    const auto kept = slurp(path + ".checked");
    for (std::size_t at = 0; at < kept.size(); at += 7) {
      auto bytes = kept;
      bytes[at] ^= 4;
      spill(path + ".checked", bytes);
      EXPECT_EQ(TokenFile(path).facts(), nullptr) << at;
    }
    for (auto bytes : {kept.substr(0, kept.size() - 1), kept + "x", std::string()}) {
      spill(path + ".checked", bytes);
      EXPECT_EQ(TokenFile(path).facts(), nullptr);
    }
    spill(path + ".checked", kept);
    // A flip that leaves size and time as they were shows when the block is read.
    const auto whole = slurp(path);
    std::string narrow;
    for (auto id : ids_before) narrow += static_cast<char>(id), narrow += '\0';
    flip(path, whole.find(narrow) + 2 * block_tokens + 20, 1);
    {
      TokenFile f(path);
      ASSERT_NE(f.facts(), nullptr);
      auto text = error_of(ExitCode::data, [&] { all_of(f); });
      EXPECT_HAS(text, path + ": tokens 32768 to 65535 (block 1 of 3)");
      EXPECT_HAS(text, "since the file was checked");
    }
    // Another time, or another size: the file has to be checked again.
    fs::last_write_time(path, fs::last_write_time(path) + std::chrono::nanoseconds(1000));
    EXPECT_EQ(TokenFile(path).facts(), nullptr);
  }
}

TEST(TokenFile, AFileThatChangesWhileItIsCheckedIsRefused) {
  Scratch dir;
  spill(dir / "a.bin", as_bin({5, 6, 7}));
  TokenFile f(dir / "a.bin");
  auto sums = f.scan(0, 1, vocab);
  fs::last_write_time(dir / "a.bin", fs::last_write_time(dir / "a.bin") + std::chrono::nanoseconds(1000));
  EXPECT_HAS(error_of(ExitCode::data, [&] { f.accept(sums); }), "changed while it was checked");
}

TEST(TokenFile, TheFirstIdOutsideIsNamedByAScan) {
  Scratch dir;
  std::vector<std::uint16_t> ids(40 * block_tokens, 3);
  ids[34 * block_tokens + 5] = 300, ids[34 * block_tokens + 9] = 400;
  spill(dir / "a.bin", as_bin(ids));
  TokenFile f(dir / "a.bin");
  EXPECT_EQ(f.scan(0, 34, vocab).largest_id, 3);
  EXPECT_HAS(error_of(ExitCode::data, [&] { f.scan(0, 40, vocab); }), fmt::format("token 300 at position {}", 34 * block_tokens + 5));
  auto apart = f.scan(0, 20, 500), rest = TokenSums::unpack(f.scan(20, 40, 500).pack()), whole = f.scan(0, 40, 500);
  apart.append(rest);
  EXPECT_EQ(apart.content(), whole.content());
  EXPECT_EQ(apart.largest_id, 400);
  EXPECT_EQ(apart.largest_at, 34 * block_tokens + 9);
}

TEST(TokenFile, HeadersOfLlmC) {
  Scratch dir;
  auto file = [&](std::int32_t magic, std::int32_t version, std::int32_t tokens, const std::string& body) {
    std::int32_t header[256] = {magic, version, tokens};
    spill(dir / "a.bin", std::string(reinterpret_cast<char*>(header), sizeof header) + body);
    return dir / "a.bin";
  };
  auto refused = [&](const std::string& path) { return error_of(ExitCode::data, [&] { TokenFile f(path); }); };
  std::uint32_t wide[3] = {5, 128255, 7};
  const std::string wide_bytes(reinterpret_cast<char*>(wide), sizeof wide);
  EXPECT_EQ(all_of(TokenFile(file(20240801, 7, 3, wide_bytes)), 128256), (std::vector<std::int32_t>{5, 128255, 7}));
  EXPECT_HAS(refused(file(20240801, 8, 3, wide_bytes)), "version 8, but only version 7");
  EXPECT_HAS(refused(file(20240520, 2, 6, wide_bytes)), "version 2, but only version 1");
  EXPECT_HAS(refused(file(20240522, 1, 6, wide_bytes)), "multiple-choice");
  EXPECT_HAS(refused(file(20240520, 1, -6, wide_bytes)), "damaged");
  EXPECT_HAS(refused(file(20240520, 1, 5, wide_bytes)), "too long");
  EXPECT_HAS(refused(file(20240520, 1, 2147483647, wide_bytes)), "truncated");
}

TEST(TokenFile, IdsOf32BitsWithoutAHeaderAreRefused) {
  Scratch dir;
  std::mt19937 engine(3);
  for (std::uint32_t limit : {256u, 50257u, 128256u, 1000000u}) {
    std::vector<std::uint32_t> wide(20000);
    std::vector<std::uint16_t> narrow(20000);
    for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = engine() % limit, narrow[i] = static_cast<std::uint16_t>(engine() % limit);
    spill(dir / "wide.bin", std::string(reinterpret_cast<char*>(wide.data()), wide.size() * 4));
    auto text = error_of(ExitCode::data, [&] { TokenFile f(dir / "wide.bin"); });
    EXPECT_HAS(text, "ids of 32 bits");
    EXPECT_HAS(text, "uint16");
    spill(dir / "narrow.bin", as_bin(narrow));
    EXPECT_EQ(TokenFile(dir / "narrow.bin").tokens(), 20000);
  }
  spill(dir / "few.bin", as_bin(std::vector<std::uint16_t>(5000, 7)));  // few ids, in all places
  EXPECT_EQ(TokenFile(dir / "few.bin").tokens(), 5000);
}

}  // namespace
}  // namespace tessera::io::test::token_file_test
