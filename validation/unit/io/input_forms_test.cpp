// What an input is, by its bytes: each form under each name, from a file and from a pipe.
#include "io/tokens/input_form.hpp"

#include <sys/stat.h>

#include <cstdlib>
#include <thread>

#include "../sample.hpp"
#include "../scratch.hpp"
#include "io/tokens/json_objects.hpp"
#include "io/tokens/tokens.hpp"

namespace tessera::io::test::input_forms_test {
using namespace tessera::test;
namespace {

std::string tokens_of(const std::string& path) {  // separators as '|'
  const TokenFile f(path);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(f.tokens()));
  f.read(0, ids, 257);
  std::string s;
  for (const auto id : ids) s += id == 256 ? '|' : static_cast<char>(id);
  return s;
}

/// What the command makes of an input, or the words that it is refused with.
struct Outcome {
  std::string tokens, refusal;
};

Outcome outcome_of(const std::string& path, const std::string& format = "auto") {
  Scratch out;
  try {
    tokenize({.inputs = {path}, .format = format, .output_dir = out.path()});
    return {tokens_of(out / "train.h5"), ""};
  } catch (const Error& error) {
    EXPECT_EQ(error.code, ExitCode::data) << error.what();
    return {"", error.what()};
  }
}

Outcome outcome_of_pipe(const std::string& path, const std::string& bytes, const std::string& format = "auto") {
  fs::remove(path);
  EXPECT_EQ(::mkfifo(path.c_str(), 0600), 0);
  std::jthread writer([&] { std::ofstream(path, std::ios::binary) << bytes; });
  return outcome_of(path, format);
}

const std::vector<std::string> names{"a.json", "a.jsonl", "a.ndjson", "a.txt", "a.md", "a.data", "a", "pipe"};

struct Form {
  std::string what, bytes, format;
  std::string tokens = "one\n[{|two \xc3\xa9 }|three";
};

const Form forms[] = {
    {"lines", "{\"text\":\"one\\n[{\"}\n{\"id\":[{\"a\":1}],\"text\":\"two \\u00e9 }\"}\n\n{\"text\":\"three\"}\n", "jsonl"},
    {"lines of another system, without a last end", "{\"text\":\"one\\n[{\"}\r\n{\"text\":\"two \xc3\xa9 }\"}\r\n{\"text\":\"three\"}",
     "jsonl"},
    {"lines after a blank one", " \n{\"text\":\"one\\n[{\"}\n{\"text\":\"two \xc3\xa9 }\"}\n{\"text\":\"three\"}\n", "jsonl"},
    {"an array", "[{\"text\":\"one\\n[{\"},{\"text\":\"two \xc3\xa9 }\"},{\"text\":\"three\"}]", "json"},
    {"an array in lines",
     "[\n  {\n    \"text\": \"one\\n[{\"\n  },\n  {\n    \"text\": \"two \xc3\xa9 }\"\n  },\n  {\"text\": \"three\"}\n]\n", "json"},
    {"objects over lines", "{\n  \"text\": \"one\\n[{\"\n}\n{\n  \"text\": \"two \xc3\xa9 }\"\n} {\"text\": \"three\"}\n", "json"},
    {"text", "One\n{not} [this]\n", "text", "One\n{not} [this]\n"},
};

TEST(InputForms, EachUnderEachNameIsTheSameDocumentsOrAsksForTheFormat) {
  Scratch dir;
  for (const Form& form : tessera::test::Sample().some(forms, 3))
    for (const std::string mark : {"", "\xef\xbb\xbf"})
      for (const std::string& name : names) {
        SCOPED_TRACE(form.what + (mark.empty() ? "" : ", marked") + ", as " + name);
        const auto outcome = [&](const std::string& format) {
          if (name == "pipe") return outcome_of_pipe(dir / name, mark + form.bytes, format);
          spill(dir / name, mark + form.bytes);
          return outcome_of(dir / name, format);
        };
        const Outcome guessed = outcome("auto");
        const bool says_json = name.find("json") != name.npos, says_text = name.ends_with(".txt") || name.ends_with(".md");
        if (form.format == "text" ? says_json : says_text) {
          EXPECT_HAS(guessed.refusal, name);
          EXPECT_HAS(guessed.refusal, "--format text");
          if (form.format != "text") {
            EXPECT_HAS(guessed.refusal, "--format " + form.format);
          }
        } else {
          EXPECT_EQ(guessed.refusal, "");
          EXPECT_EQ(guessed.tokens, form.tokens);
        }
        const Outcome said = outcome(form.format);
        EXPECT_EQ(said.refusal, "");
        EXPECT_EQ(said.tokens, form.tokens);
        if (form.format != "text") {
          EXPECT_EQ(outcome("text").tokens, form.bytes) << "as it stands, without the mark";
        }
      }
}

/// A file of several arrays or objects, of which one is wanted.
TEST(InputForms, SeveralDocumentsOfJsonAreTakenByNumber) {
  Scratch dir;
  const std::string path = dir / "several.json";
  const auto taken = [&](std::int64_t document, const std::string& format = "auto") {
    Scratch out;
    try {
      tokenize({.inputs = {path}, .format = format, .document = document, .output_dir = out.path()});
      return tokens_of(out / "train.h5");
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  spill(path, "[\n {\"text\": \"one\"},\n {\"text\": \"[two]\"}\n]\n[{\"text\": \"three\"}] {\"text\": \"four\"}\n");
  EXPECT_HAS(taken(0), "line 5: a second JSON document begins, after an array of 2 objects. Take one by its number: --document 1");
  EXPECT_EQ(taken(1), "one|[two]");
  EXPECT_EQ(taken(2), "three");
  EXPECT_EQ(taken(3), "four");
  EXPECT_HAS(taken(4), "--document 4 is requested, but the input holds 3 JSON documents");
  EXPECT_HAS(taken(1, "jsonl"), "but this is read as jsonl");
  spill(path, "{\"text\": \"one\"}\n{\"text\": \"two\"}\n");
  EXPECT_EQ(taken(2), "two");
}

/// What only --chat reads is said to be that.
TEST(InputForms, ConversationsNameTheOption) {
  Scratch dir;
  spill(dir / "chat.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
  EXPECT_HAS(
      outcome_of(dir / "chat.jsonl").refusal,
      "chat.jsonl:1: the object has no \"text\" but \"messages\": it is a conversation, which --chat renders with a chat template. Give "
      "--tokenizer MODEL --chat.");
  spill(dir / "alpaca.json", "[{\"instruction\": \"a\", \"input\": \"\", \"output\": \"b\"}]");
  EXPECT_HAS(outcome_of(dir / "alpaca.json").refusal, "object 1: the object has no \"text\" but \"instruction\"");
  EXPECT_HAS(outcome_of(dir / "alpaca.json").refusal, "--chat, and --chat-template alpaca");
  spill(dir / "both.jsonl", "{\"text\": \"a\", \"messages\": []}\n{\"id\": 1}\n");
  EXPECT_EQ(outcome_of(dir / "both.jsonl").refusal.find("--chat"), std::string::npos) << "each object by its own keys";
}

/// Where bytes are read in pieces of a MiB: what lies over their edges is whole.
TEST(InputForms, AnArrayOfManyPieces) {
  Scratch dir;
  std::string array = "[", lines;
  for (int i = 0; array.size() < (5 << 19); ++i) {
    std::string odd;  // brackets and quotes that are text, of a length that moves them over the edges
    for (int k = 0; k < i % 97; ++k) odd += "\\\"{[\\\\";
    const std::string object = fmt::format("{{\"text\": \"{}{}\"}}", i, odd);
    array += (i > 0 ? ",\n" : "") + object, lines += object + "\n";
  }
  spill(dir / "a.json", array + "]"), spill(dir / "a.jsonl", lines);
  const Outcome json = outcome_of(dir / "a.json"), line_by_line = outcome_of(dir / "a.jsonl");
  EXPECT_EQ(json.refusal, "");
  EXPECT_EQ(json.tokens, line_by_line.tokens);
  // One object that is larger than what is looked at.
  spill(dir / "a", "[{\"text\": \"" + std::string(3 << 20, 'a') + "\"}]");
  EXPECT_EQ(outcome_of(dir / "a").tokens, std::string(3 << 20, 'a'));
  spill(dir / "a", "{\"text\": \"" + std::string(3 << 20, 'a') + "\"}\n{\"text\": \"b\"}");
  EXPECT_EQ(outcome_of(dir / "a").tokens, std::string(3 << 20, 'a') + "|b");
}

/// What begins as JSON and is none, in each name: a refusal that says --format.
TEST(InputForms, WhatIsNoJsonAfterAllIsRefused) {
  Scratch dir;
  const struct {
    std::string bytes, says;
  } cases[] = {
      {"{'text': 'a'}\n{'text': 'b'}\n", "broken JSON at byte"},
      {"{not JSON at all", "ends inside an object"},
      {"[Verse 1]\nLa la la\n", "element 1 of the array is not an object"},
      {"[{\"text\": \"a\"}, {\"te", "ends before"},
      {"[{\"text\": \"a\"}, \"b\"]", "element 2 of the array is not an object"},
      {"[{\"text\": \"a\"},]", "a comma stands before the end"},
      {"[{\"text\": \"a\"} {\"text\": \"b\"}]", "neither , nor ] follows object 1"},
      {"[{\"text\": \"a\"}]\n[{\"text\": \"b\"}]", "line 2: a second JSON document begins, after an array of 1 objects"},
      {"[{\"text\": \"a\"}]\nx", "after the end of the array"},
      {"[{\"text\": \"a\"},\n{\"text\": 5}]", ":2: object 2: \"text\" is not a string"},
      {"[{\"text\": \"a\"},\n{\"text\": \"b\", \"text\": \"c\"}]", ":2: object 2: text occurs twice"},
      {"[{\"text\": \"a\"},\n{\"txt\": \"b\"}]", ":2: object 2: the object has no \"text\""},
      {"[{\"text\": \"a\"},\n{\"text\" \"b\"}]", ":2: object 2: broken JSON at byte 11"},
      {"{\"text\": \"a\"}\nand more", "--format"},
      {"[\"a\", \"b\"]", "jq -c '.[] | {text: .}' "},
      {"[[{\"text\": \"a\"}]]", "jq -c '.[][]' "},
  };
  for (const auto& c : cases)
    for (const std::string& name : names) {
      SCOPED_TRACE(c.bytes + ", as " + name);
      spill(dir / name, c.bytes);
      const Outcome outcome = outcome_of(dir / name);
      EXPECT_HAS(outcome.refusal, name);
      EXPECT_HAS(outcome.refusal, "--format");
      if (name == "a") {
        EXPECT_HAS(outcome.refusal, c.says);
      }
    }
}

/// Runs the command that a refusal ends with: FOLDER is a folder, `tessera tokenize` keeps what it is given.
std::string advised(const std::string& refusal, const std::string& begin, const std::string& to) {
  std::string command = refusal.substr(std::min(refusal.rfind(begin), refusal.size()));
  const auto at = command.find("tessera tokenize - FOLDER");
  if (at == command.npos) return "no advice";
  command.replace(at, command.npos, "cat > " + to);
  return std::system(command.c_str()) == 0 ? slurp(to) : "the advice fails: " + command;  // NOLINT: of this test's own words
}

TEST(InputForms, OtherFormatsAreNamedAndTheAdviceWorks) {
  Scratch dir;
  const std::string lines = "{\"text\":\"one\"}\n{\"text\":\"two\"}\n";
  spill(dir / "plain", lines);
  const struct {
    std::string tool, make, says, program;
  } cases[] = {
      {"gzip", "gzip -c < {}", "this is gzip", "zcat"},
      {"zstd", "zstd -qc < {}", "this is zstd", "zstdcat"},
      {"xz", "xz -c < {}", "this is xz", "xzcat"},
      {"bzip2", "bzip2 -c < {}", "this is bzip2", "bzcat"},
      {"zip", "zip -q - {}", "this is zip", "unzip -p"},
      {"tar", "tar -cf - {} 2> /dev/null", "this is tar", "tar -xOf"},
      {"iconv", "(printf '\\377\\376'; iconv -f UTF-8 -t UTF-16LE {})", "this is UTF-16", "iconv -f UTF-16"},
      {"iconv", "(printf '\\376\\377'; iconv -f UTF-8 -t UTF-16BE {})", "this is UTF-16", "iconv -f UTF-16"},
      {"iconv", "(printf '\\377\\376\\0\\0'; iconv -f UTF-8 -t UTF-32LE {})", "this is UTF-32", "iconv -f UTF-32"},
  };
  for (const auto& c : cases) {
    if (std::system(("command -v " + c.tool + " > /dev/null").c_str()) != 0) continue;  // NOLINT: of this test's own words
    for (const std::string name : {"a.jsonl", "a.txt", "it's a b"}) {
      SCOPED_TRACE(c.make + ", as " + name);
      const std::string path = dir / name, make = fmt::format(fmt::runtime(c.make), dir / "plain") + " > \"" + path + "\"";
      ASSERT_EQ(std::system(make.c_str()), 0);  // NOLINT: of this test's own words
      for (const std::string format : {"auto", "text", "jsonl"}) EXPECT_HAS(outcome_of(path, format).refusal, c.says);
      EXPECT_EQ(advised(outcome_of(path).refusal, c.program, dir / "given"), lines);
    }
    EXPECT_HAS(outcome_of_pipe(dir / "pipe", slurp(dir / "a.txt")).refusal, c.says);
  }
  const struct {
    std::string bytes, says;
  } others[] = {{"\x89HDF\r\n\x1a\n....", "this is HDF5, not text"},
                {"\x93NUMPY\1...", "this is an array of NumPy, not text"},
                {std::string("ARROW1\0\0", 8), "this is Arrow, not text"},
                {"\x04\x22\x4d\x18...", "lz4cat"}};
  for (const auto& c : others) {
    spill(dir / "a.txt", c.bytes);
    EXPECT_HAS(outcome_of(dir / "a.txt").refusal, c.says);
  }
}

TEST(InputForms, ParquetByItsBytes) {
  const auto form = [](const std::string& path, const std::string& bytes, const std::string& format, bool piped = false) {
    return form_of({.path = path, .name = path, .bytes = bytes, .whole = true, .piped = piped}, format, false);
  };
  for (const std::string path : {"a.parquet", "a.txt", "a.jsonl", "a"}) EXPECT_EQ(form(path, "PAR1....PAR1", "auto"), InputForm::parquet);
  EXPECT_EQ(form("a.txt", "PAR1....", "text"), InputForm::text) << "who says text has it";
  EXPECT_EQ(form("a.parquet", "", "auto"), InputForm::parquet) << "refused as what is empty";
  EXPECT_EQ(form("a.parquet", "{\"text\":\"a\"}", "jsonl"), InputForm::lines);
  const std::string why = error_of(ExitCode::data, [&] { form("a.parquet", "{\"text\":\"a\"}", "auto"); });
  EXPECT_HAS(why, "a.parquet: its name says Parquet, but the file does not begin like Parquet");
  EXPECT_HAS(why, "--format text, jsonl or json");
  EXPECT_HAS(error_of(ExitCode::data, [&] { form("a", "text", "parquet"); }), "--format says Parquet");
  EXPECT_HAS(error_of(ExitCode::data, [&] { form("a", "PAR1....", "jsonl"); }), "this is Parquet, but --format is jsonl");
  EXPECT_HAS(error_of(ExitCode::usage, [&] { form("a", "PAR1....", "auto", true); }), "Parquet is read from its end, but this is a pipe");
}

/// Conversations, and texts under a key, are no plain text: nothing is left to ask.
TEST(InputForms, WhereDocumentsAreWantedANameThatSaysTextIsNoQuestion) {
  const std::string lines = "{\"text\":\"a\"}\n{\"text\":\"b\"}\n";
  const InputHead head{.path = "a.txt", .name = "a.txt", .bytes = lines, .whole = true};
  EXPECT_EQ(form_of(head, "auto", true), InputForm::lines);
  EXPECT_EQ(form_of({.path = "a.txt", .name = "a.txt", .bytes = "plain", .whole = true}, "auto", true), InputForm::lines)
      << "whose reader refuses it";
}

TEST(InputForms, TheMarkIsNoTextAndPlacesCountIt) {
  Scratch dir;
  spill(dir / "a.txt",
        "\xef\xbb\xbf"
        "fine \xff");
  EXPECT_HAS(outcome_of(dir / "a.txt").refusal, "a.txt:1: not UTF-8 at byte offset 8");
  spill(dir / "a.txt", "\xef\xbb\xbf");
  EXPECT_HAS(outcome_of(dir / "a.txt").refusal, "holds no text");
}

/// Each key of a line, beside those that are wanted: used, listed, or refused by name.
TEST(InputForms, NoKeyIsDroppedWithoutAWord) {
  const struct {
    std::string object, used;  ///< "": refused
    std::vector<std::string> unused = {};
    std::string says = "", field = "";
  } cases[] = {
      {R"({"text": "a"})", "a"},
      {R"({"id": 7, "text": "a", "meta": {"text": "b"}, "source": null})", "a", {"id", "meta", "source"}},
      {R"({"text": "a", "": 1, "Text": [1, {"x": {}}]})", "a", {"", "Text"}},
      {R"({"prompt": "a", "completion": "b", "id": 1})", "ab", {"id"}},
      {R"({"text": "a", "body": "b"})", "b", {"text"}, "", "body"},
      {R"({"text": null})", "", {}, "\"text\" is null"},
      {R"({"text": null, "id": 1})", "", {}, "\"text\" is null"},
      {R"({"prompt": null, "completion": "b"})", "", {}, "\"prompt\" is null"},
      {R"({"prompt": "a", "completion": null})", "", {}, "\"completion\" is null"},
      {R"({"text": "a", "prompt": null})", "", {}, "\"text\" and also \"prompt\""},
      {R"({"body": null})", "", {}, "\"body\" is null", "body"},
      {R"({"text": ["a"]})", "", {}, "\"text\" is not a string"},
      {R"({"text": {"a": 1}})", "", {}, "\"text\" is not a string"},
      {R"({"text": "a", "text": "b"})", "", {}, "text occurs twice"},
      {R"({"id": 1})", "", {}, "no \"text\""},
      {R"({"text": "a", "label": 1, "rejected": "b"})", "a", {"rejected", "label"}},
      {R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "", {}, "preference pairs"},
      {R"({"chosen": [{"role": "user"}], "rejected": null})", "", {}, "preference pairs"},
      {R"({"prompt": "a", "completion": "b", "label": false})", "", {}, "KTO"},
      {R"({"prompt": "a", "chosen": "b", "rejected": "c"})", "b", {"prompt", "rejected"}, "", "chosen"},
  };
  for (const std::string format : {"jsonl", "json"})
    for (const auto& c : cases) {
      SCOPED_TRACE(c.object + " as " + format);
      Scratch dir;
      spill(dir / "a.json", format == "json" ? "[" + c.object + ",\n" + c.object + "]" : c.object + "\n" + c.object);
      const TokenizeOptions options{.inputs = {dir / "a.json"}, .format = format, .field = c.field, .output_dir = dir / "out"};
      if (c.used.empty()) {
        const std::string why = error_of(ExitCode::data, [&] { tokenize(options); });
        EXPECT_HAS(why, "a.json:1:");
        EXPECT_HAS(why, c.says);
        continue;
      }
      EXPECT_EQ(tokenize(options).unused, c.unused);
      EXPECT_EQ(tokens_of(dir / "out/train.h5"), c.used + "|" + c.used);
    }
  // Of all inputs, each once; keys that are data are not kept for ever.
  Scratch dir;
  std::string many;
  for (int i = 0; i < 500; ++i) many += fmt::format("{{\"text\": \"a\", \"{}\": 1}}\n", i);
  spill(dir / "a.jsonl", "{\"text\": \"a\", \"id\": 1}\n"), spill(dir / "b.jsonl", "{\"id\": 1, \"text\": \"b\", \"url\": 2}\n"),
      spill(dir / "c.jsonl", many);
  EXPECT_EQ(tokenize({.inputs = {dir / "a.jsonl", dir / "b.jsonl"}, .output_dir = dir / "out"}).unused,
            (std::vector<std::string>{"id", "url"}));
  EXPECT_EQ(tokenize({.inputs = {dir / "c.jsonl"}, .output_dir = dir / "out"}).unused.size(), 100u);
}

TEST(InputForms, ALineHasALimitThatAnOptionRaises) {
  const struct {
    std::string name, before, after, says;
  } cases[] = {{"a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"", "\"}\n", "a.jsonl:2: the line has more than"},
               {"a.jsonl", "{\"text\":\"a\"}\n{\"text\":\"", "\"}", "a.jsonl:2: the line has more than"},
               {"a.json", "[{\"text\":\"a\"},\n{\"text\":\"", "\"}]", "a.json:2: object 2: the object has more than"}};
  for (const auto& c : tessera::test::Sample().some(cases, 1))
    for (const int length : {300, 3 << 20}) {  // in a piece, and over several
      Scratch dir;
      spill(dir / c.name, c.before + std::string(static_cast<std::size_t>(length), 'x') + c.after);
      const auto run = [&](std::int64_t longest) {
        tokenize({.inputs = {dir / c.name}, .output_dir = dir / "out", .longest_line = longest});
      };
      const std::string why = error_of(ExitCode::data, [&] { run(length); });
      EXPECT_HAS(why, c.says);
      EXPECT_HAS(why, "--longest-line");
      EXPECT_FALSE(fs::exists(dir / "out"));
      EXPECT_NO_THROW(run(length + 11));
      EXPECT_NO_THROW(run(0));
    }
}

}  // namespace
}  // namespace tessera::io::test::input_forms_test
