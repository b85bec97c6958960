// Text to tokens: what is read is what was written, and bad input is refused by place.
#include "io/tokens/tokens.hpp"

#include <sys/stat.h>

#include <random>
#include <thread>

#include "../scratch.hpp"
#include "io/files/utf8.hpp"
#include "io/hdf5/hdf5.hpp"

namespace tessera::io::test::tokens_test {
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
  auto r = tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir / "out/data"});
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
  auto r = tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir.path(), .validation = 0.1});
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
  auto r = tokenize({.inputs = {dir / "a.jsonl"}, .output_dir = dir.path(), .validation = 0.5});
  EXPECT_EQ(r.documents, 4);
  EXPECT_EQ(bytes_of(TokenFile(dir / "train.h5")), "one|two\n\xe2\x82\xac");
  EXPECT_EQ(bytes_of(TokenFile(dir / "val.h5")), "three|four");
  EXPECT_EQ(starts_of(dir / "train.h5"), (std::vector<std::int64_t>{0, 4}));
  EXPECT_EQ(starts_of(dir / "val.h5"), (std::vector<std::int64_t>{0, 6}));
  EXPECT_EQ(r.train_tokens, 11);
  EXPECT_EQ(r.validation_tokens, 10);
}

/// '1' for each token that counts in the loss.
std::string counted_of(const std::string& path) {
  const TokenFile f(path);
  std::vector<float> weights(static_cast<std::size_t>(f.tokens()), 1);
  std::string marks;
  f.drop_uncounted(0, weights);
  for (const float weight : weights) marks += weight == 0 ? '0' : '1';
  return marks;
}

TEST(Tokenize, CompletionsCountAndPromptsDoNot) {
  Scratch dir;
  spill(dir / "a.jsonl",
        "{\"prompt\": \"ask: \", \"completion\": \"yes\"}\n{\"text\": \"free\"}\n\n{\"completion\": \"b\\u20ac\", \"prompt\": \"\"}\n"
        "{\"prompt\": \"q\", \"completion\": \"abcdefgh\"}\n");
  const auto r = tokenize({.inputs = {dir / "a.jsonl"}, .output_dir = dir.path(), .validation = 0.25});
  EXPECT_EQ(r.documents, 4);
  EXPECT_EQ(bytes_of(TokenFile(dir / "train.h5")), "ask: yes|free|b\xe2\x82\xac");
  EXPECT_EQ(counted_of(dir / "train.h5"), "000001111111111111") << "what ends a document is learned with its completion";
  EXPECT_EQ(bytes_of(TokenFile(dir / "val.h5")), "qabcdefgh");
  EXPECT_EQ(counted_of(dir / "val.h5"), "011111111");
  EXPECT_EQ(r.train_counted, 13);
  EXPECT_EQ(r.validation_counted, 8);
  EXPECT_EQ(TokenFile(dir / "train.h5").facts()->counted, 13);
  // Any window of it, whichever token of a byte it begins with.
  const TokenFile f(dir / "train.h5");
  for (std::int64_t begin = 0; begin < 12; ++begin) {
    std::vector<float> weights(6, 1);
    f.drop_uncounted(begin, weights);
    for (std::int64_t i = 0; i < 6; ++i) EXPECT_EQ(weights[static_cast<std::size_t>(i)] == 0, begin + i < 5) << begin << " " << i;
  }
  // Only texts: no mask, and the file is what it was before there were any.
  spill(dir / "b.jsonl", "{\"text\": \"free\"}\n");
  EXPECT_EQ(tokenize({.inputs = {dir / "b.jsonl"}, .output_dir = dir / "b"}).train_counted, -1);
  EXPECT_FALSE(TokenFile(dir / "b/train.h5").masked());
  // One line, cut inside its prompt.
  spill(dir / "c.jsonl", "{\"prompt\": \"0123456789\", \"completion\": \"ab\"}\n");
  tokenize({.inputs = {dir / "c.jsonl"}, .output_dir = dir / "c", .validation = 0.5});
  EXPECT_EQ(counted_of(dir / "c/train.h5"), "000000");
  EXPECT_EQ(counted_of(dir / "c/val.h5"), "000011");
}

/// Refused, and the output folder is as it was.
void expect_refused(const std::string& name, const std::string& content, const std::vector<std::string>& says, double validation = 0) {
  Scratch dir;
  spill(dir / name, content);
  auto text = error_of(ExitCode::data, [&] { tokenize({.inputs = {dir / name}, .output_dir = dir / "out", .validation = validation}); });
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
  expect_refused("a.jsonl", "{\"text\": 5}\n", {"a.jsonl:1:", "\"text\" is not a string"});
  expect_refused("a.jsonl", "[1]\n", {"element 1 of the array is not an object"});
  expect_refused("a.jsonl", "{\"text\":\"a\"}\n[1]\n", {"a.jsonl:2:", "no JSON object"});
  expect_refused("a.jsonl", "{\"text\":\"a\"}\n{\"prompt\":\"b\"}\n", {"a.jsonl:2:", "no \"completion\""});
  expect_refused("a.jsonl", "{\"completion\":\"b\"}\n", {"a.jsonl:1:", "no \"prompt\""});
  expect_refused("a.jsonl", "{\"prompt\":\"a\",\"completion\":\"\"}\n", {"a.jsonl:1:", "\"completion\" is empty"});
  expect_refused("a.jsonl", "{\"prompt\":7,\"completion\":\"b\"}\n", {"a.jsonl:1:", "\"prompt\" is not a string"});
  expect_refused("a.jsonl", "{\"prompt\":\"a\",\"completion\":\"b\",\"text\":\"c\"}\n", {"a.jsonl:1:", "and also"});
  expect_refused("a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"b\",\"size\":1e999}\n", {"a.jsonl:2:", "1e999"});
  expect_refused("a.jsonl", "{\"text\":\"a\",\"size\":" + std::string(5000, '9') + "}\n", {"a.jsonl:1:", "999 ..."});
  expect_refused("a.jsonl", "{\"text\":\"a\",\"deep\":" + std::string(1000000, '['), {"a.jsonl:1:", "broken JSON"});
  expect_refused("a.txt", "x", {"cannot be split"}, 0.5);
  Scratch dir;
  EXPECT_HAS(error_of(ExitCode::data, [&] { tokenize({.inputs = {dir / "none"}, .output_dir = dir.path()}); }), "No such file");
  spill(dir / "a.txt", "x");
  EXPECT_HAS(error_of(ExitCode::usage, [&] { tokenize({.tokenizer = "bpe", .inputs = {dir / "a.txt"}, .output_dir = dir.path()}); }),
             "byte");
  EXPECT_HAS(error_of(ExitCode::usage, [&] { tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir.path(), .validation = 1.0}); }),
             "[0, 1)");
  // A write that fails takes its temporaries with it.
  fs::create_directory(dir / "out");
  fs::create_directory(dir / "out/val.h5.partial");
  spill(dir / "a.txt", "xyz");
  error_of(ExitCode::storage, [&] { tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir / "out", .validation = 0.4}); });
  EXPECT_FALSE(fs::exists(dir / "out/train.h5"));
  EXPECT_FALSE(fs::exists(dir / "out/train.h5.partial"));
}

TEST(Tokenize, NothingIsWrittenThroughALink) {
  for (const char* planted : {"train.h5", "train.h5.partial"}) {
    Scratch dir;
    spill(dir / "victim", "precious"), spill(dir / "a.txt", "xyz");
    fs::create_directory(dir / "out");
    fs::create_symlink(dir / "victim", dir / ("out/" + std::string(planted)));
    tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir / "out"});
    EXPECT_EQ(slurp(dir / "victim"), "precious") << planted;
    EXPECT_FALSE(fs::is_symlink(dir / "out/train.h5")) << planted;
  }
}

/// Tokenizes what a writer sends through a named pipe, the only one of `options.inputs`.
TokenizeResult tokenize_piped(const std::string& content, const TokenizeOptions& options) {
  EXPECT_EQ(::mkfifo(options.inputs[0].c_str(), 0600), 0);
  std::jthread writer([&] {
    std::ofstream pipe(options.inputs[0], std::ios::binary);  // waits for the reader
    pipe << content;
  });
  return tokenize(options);
}

TEST(Tokenize, SeveralInputsFollowEachOtherInTheOrderGiven) {
  Scratch dir;
  fs::create_directory(dir / "web");
  spill(dir / "b.txt", "text of b");
  spill(dir / "a.jsonl", "{\"text\":\"a1\"}\n{\"text\":\"a2\"}\n");
  spill(dir / "web/z.jsonl", "{\"prompt\":\"z\",\"completion\":\"Z\"}\n");
  spill(dir / "web/10.jsonl", "{\"text\":\"ten\"}");
  spill(dir / "web/9.jsonl", "{\"text\":\"nine\"}");
  const TokenizeOptions options{.inputs = {dir / "b.txt", dir / "web/*.jsonl", dir / "a.jsonl"}, .output_dir = dir / "out"};
  const auto r = tokenize(options);
  EXPECT_EQ(bytes_of(TokenFile(dir / "out/train.h5")), "text of b|ten|nine|zZ|a1|a2");
  EXPECT_EQ(starts_of(dir / "out/train.h5"), (std::vector<std::int64_t>{0, 10, 14, 19, 22, 25}));
  EXPECT_EQ(r.documents, 6);
  EXPECT_EQ(r.inputs, "5 inputs");
  EXPECT_EQ(r.train_counted, r.train_tokens - 1) << "the prompt alone does not count";
  // The tail of all documents is for validation, wherever its input begins.
  TokenizeOptions split = options;
  split.validation = 0.5;
  tokenize(split);
  EXPECT_EQ(bytes_of(TokenFile(dir / "out/train.h5")), "text of b|ten|nine");
  EXPECT_EQ(bytes_of(TokenFile(dir / "out/val.h5")), "zZ|a1|a2");
  // A name with the signs of a pattern is a name where there is such a file.
  spill(dir / "web/[1]*.jsonl", "{\"text\":\"odd\"}");
  EXPECT_EQ(tokenize({.inputs = {dir / "web/[1]*.jsonl"}, .output_dir = dir / "odd"}).documents, 1);
}

TEST(Tokenize, AFaultOfOneOfSeveralInputsNamesIt) {
  Scratch dir;
  spill(dir / "a.txt", "text"), spill(dir / "empty.txt", ""), spill(dir / "bad.txt", "two\n\xff"), spill(dir / "bad.jsonl", "{}\n");
  const auto refused = [&](ExitCode code, const std::vector<std::string>& inputs, const std::string& words) {
    EXPECT_HAS(error_of(code, [&] { tokenize({.inputs = inputs, .output_dir = dir / "out"}); }), words);
    EXPECT_FALSE(fs::exists(dir / "out"));
  };
  refused(ExitCode::data, {dir / "a.txt", dir / "empty.txt"}, "empty.txt: the file holds no text");
  refused(ExitCode::data, {dir / "a.txt", dir / "bad.txt"}, "bad.txt:2: not UTF-8");
  refused(ExitCode::data, {dir / "a.txt", dir / "bad.jsonl"}, "bad.jsonl:1: the object has no \"text\"");
  refused(ExitCode::data, {dir / "a.txt", dir / "none.txt"}, "none.txt: cannot open: No such file");
  refused(ExitCode::data, {dir / "a.txt", dir.path()}, "this is a folder");
  refused(ExitCode::data, {dir / "*.parquet.gz"}, "*.parquet.gz: no file has this name or matches this pattern");
  refused(ExitCode::usage, {"-", dir / "a.txt", "-"}, "standard input can be read only once");
  refused(ExitCode::usage, {}, "there is no INPUT");
}

TEST(Tokenize, TheFieldOfALineCanBeNamed) {
  Scratch dir;
  spill(dir / "a.jsonl", "{\"content\":\"one\",\"text\":\"no\",\"prompt\":1}\n{\"content\":\"two\"}\n");
  tokenize({.inputs = {dir / "a.jsonl"}, .field = "content", .output_dir = dir / "out"});
  EXPECT_EQ(bytes_of(TokenFile(dir / "out/train.h5")), "one|two");
  const auto why = [&](const std::string& line, const std::string& format = "auto") {
    spill(dir / "b.jsonl", line);
    return error_of(format == "auto" ? ExitCode::data : ExitCode::usage,
                    [&] { tokenize({.inputs = {dir / "b.jsonl"}, .format = format, .field = "content", .output_dir = dir / "b"}); });
  };
  EXPECT_HAS(why("{\"text\":\"a\"}"), "b.jsonl:1: the object has no \"content\"");
  EXPECT_HAS(why("{\"content\":[1]}"), "b.jsonl:1: \"content\" is not a string. Every line must be an object with a string \"content\"");
  EXPECT_HAS(why("{\"content\":\"a\"}", "text"), "--field content names");
}

TEST(Tokenize, APipeIsReadOnceAndGivesTheSameFiles) {
  Scratch dir;
  std::string text;
  for (int i = 0; i < 400000; ++i) text += "line " + std::to_string(i) + " \xe2\x82\xac\n";  // more than a pipe holds, several pieces
  spill(dir / "a.txt", text);
  auto file = tokenize({.inputs = {dir / "a.txt"}, .output_dir = dir / "file", .validation = 0.1});
  auto pipe = tokenize_piped(text, {.inputs = {dir / "pipe"}, .output_dir = dir / "piped/deep", .validation = 0.1});
  EXPECT_EQ(pipe.train_tokens, file.train_tokens);
  for (std::string name : {"train.h5", "val.h5"})
    EXPECT_EQ(bytes_of(TokenFile(dir / "piped/deep/" + name)), bytes_of(TokenFile(dir / "file/" + name)));
  auto lines = tokenize_piped("{\"text\":\"one\"}\n{\"text\":\"two\"}",
                              {.inputs = {dir / "lines"}, .format = "jsonl", .output_dir = dir / "lines.out"});
  EXPECT_EQ(lines.documents, 2);
}

TEST(Tokenize, SeveralPipesMayHaveOneWriter) {
  Scratch dir;
  const std::vector<std::string> pipes{dir / "a", dir / "b"};
  const std::string long_text(300000, 'a');  // more than a pipe holds
  for (const auto& pipe : pipes) {
    ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  }
  std::jthread writer([&] {
    for (const auto& pipe : pipes) std::ofstream(pipe, std::ios::binary) << long_text << pipe.back();
  });
  tokenize({.inputs = pipes, .output_dir = dir / "out"});
  EXPECT_EQ(bytes_of(TokenFile(dir / "out/train.h5")), long_text + "a|" + long_text + "b");
}

TEST(Tokenize, ARefusedPipeLeavesNothing) {
  Scratch dir;
  auto text = error_of(ExitCode::data, [&] {
    tokenize_piped("{\"text\":\"a\"}\n{\"text\":1e999}\n", {.inputs = {dir / "pipe.jsonl"}, .output_dir = dir / "out"});
  });
  EXPECT_HAS(text, "pipe.jsonl:2:");
  EXPECT_EQ(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()), 1) << "more than the pipe itself";
  for (std::string other : {"/dev/zero", "/dev/full"})
    EXPECT_HAS(error_of(ExitCode::data, [&] { tokenize({.inputs = {other}, .output_dir = dir / "out"}); }), other + ": this is a device");
  EXPECT_HAS(error_of(ExitCode::data, [&] { tokenize({.inputs = {dir.path()}, .output_dir = dir / "out"}); }), "this is a folder");
  EXPECT_HAS(error_of(ExitCode::usage, [&] { tokenize({.inputs = {"-"}, .format = "csv", .output_dir = dir / "out"}); }), "csv");
}

/// A text without an end of line is refused before it fills memory.
TEST(Tokenize, AnEndlessLineIsRefused) {
  Scratch dir;
  io::PosixFile::create(dir / "a.jsonl").truncate(std::int64_t{70} << 20);  // zeros, and a hole on the disk
  EXPECT_HAS(error_of(ExitCode::data, [&] { tokenize({.inputs = {dir / "a.jsonl"}, .output_dir = dir / "out"}); }),
             "a.jsonl:1: the line has more than 32.00 MiB");
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

}  // namespace
}  // namespace tessera::io::test::tokens_test
