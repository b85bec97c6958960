#include "io/tokens/input_form.hpp"

#include <algorithm>
#include <initializer_list>

#include "base/check.hpp"
#include "io/tokens/json_objects.hpp"

namespace tessera::io {
namespace {

/// What is no input and is known by its first bytes.
struct Foreign {
  std::string_view magic;
  std::size_t at;
  const char* name;
  const char* program;  ///< that makes an input of it; "": see `advice`
  const char* advice = "";
};
using std::string_view_literals::operator""sv;
constexpr Foreign foreign[] = {
    {"\x1f\x8b"sv, 0, "gzip", "zcat"},
    {"\x28\xb5\x2f\xfd"sv, 0, "zstd", "zstdcat"},
    {"\xfd\x37zXZ\0"sv, 0, "xz", "xzcat"},
    {"1AY&SY"sv, 4, "bzip2", "bzcat"},
    {"\x04\x22\x4d\x18"sv, 0, "lz4", "lz4cat"},
    {"PK\3\4"sv, 0, "zip", "unzip -p"},
    {"ustar"sv, 257, "tar", "tar -xOf"},
    // Before UTF-16, whose mark is its beginning.
    {"\xff\xfe\0\0"sv, 0, "UTF-32", "iconv -f UTF-32 -t UTF-8"},
    {"\0\0\xfe\xff"sv, 0, "UTF-32", "iconv -f UTF-32 -t UTF-8"},
    {"\xff\xfe"sv, 0, "UTF-16", "iconv -f UTF-16 -t UTF-8"},
    {"\xfe\xff"sv, 0, "UTF-16", "iconv -f UTF-16 -t UTF-8"},
    {"\x89HDF\r\n\x1a\n"sv, 0, "HDF5", "", "Name a file of tokens in data.train; write its texts as JSON lines or Parquet first."},
    {"\x93NUMPY"sv, 0, "an array of NumPy", "",
     "Name token ids in data.train, as .bin: numpy.load(FILE).astype(numpy.uint16).tofile(NAME)."},
    {"ARROW1"sv, 0, "Arrow", "", "Write it as Parquet (datasets: to_parquet) or as JSON lines."},
};
constexpr std::string_view parquet_magic = "PAR1";
constexpr std::string_view blanks = " \t\r\n";

/// As a shell wants it.
std::string quoted(const std::string& path) {
  const auto plain = [](unsigned char c) {
    return std::isalnum(c) || std::string_view("/._-+,:=@%").find(static_cast<char>(c)) != std::string_view::npos;
  };
  if (std::ranges::all_of(path, plain)) return path;
  std::string text = "'";
  for (const char c : path) text += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return text + "'";
}

void refuse_foreign(const InputHead& head) {
  for (const Foreign& f : foreign) {
    if (!head.bytes.substr(std::min(f.at, head.bytes.size())).starts_with(f.magic)) continue;
    if (f.at == 4 && !head.bytes.starts_with("BZh")) continue;
    if (*f.program == '\0') fail(ExitCode::data, "{}: this is {}, not text. {}", head.name, f.name, f.advice);
    const bool characters = std::string_view(f.program).starts_with("iconv");
    fail(ExitCode::data, "{}: this is {}, {} on the way: {}", head.name, f.name,
         characters ? "but text must be UTF-8. Convert it" : "which is not unpacked here. Unpack it", passed_through(head, f.program));
  }
}

/// What the first bytes say of JSON.
struct JsonLook {
  bool begins = false;   ///< with [ or {
  bool objects = false;  ///< and what follows is an object, as far as it can be seen
  bool lines = false;    ///< each on a line of its own, by the first one
  std::string fault;     ///< why there are no objects
};

JsonLook look_for_json(const InputHead& head) {
  JsonLook look;
  std::string_view rest = head.bytes.substr(std::min(head.bytes.find_first_not_of(blanks), head.bytes.size()));
  if (rest.empty() || (rest.front() != '[' && rest.front() != '{')) return look;
  look.begins = true;
  JsonObjects objects;
  const bool found = objects.next(rest);
  look.fault = objects.fault();
  if (found) look.fault = read_object(objects.object(), {}, [](const std::string&) {});
  if (!found && look.fault.empty() && head.whole && !objects.may_end()) look.fault = "it ends inside an object or an array";
  look.objects = look.fault.empty();
  const std::string_view after = rest.substr(0, rest.find('\n'));
  look.lines = !objects.in_array() && objects.object().find('\n') == std::string::npos && after.find_first_not_of(blanks) == after.npos;
  return look;
}

/// An array of what is no object, made into objects.
std::string as_objects(const InputHead& head) {
  const std::size_t open = head.bytes.find('['), inside = open == head.bytes.npos ? open : head.bytes.find_first_not_of(blanks, open + 1);
  if (inside == head.bytes.npos || head.bytes.find_first_not_of(blanks) != open) return "";
  const char first = head.bytes[inside];
  const char* filter = first == '"' ? "'.[] | {text: .}'" : first == '[' ? "'.[][]'" : "";
  return *filter == '\0'
             ? ""
             : fmt::format(" To make documents from an array of these:  {}", passed_through(head, fmt::format("jq -c {}", filter)));
}

InputForm form_by_bytes(const InputHead& head, bool documents) {
  const bool named_json = ends_with_any(head.path, {".json", ".jsonl", ".ndjson"}),
             named_text = ends_with_any(head.path, {".txt", ".text", ".md"});
  const JsonLook look = look_for_json(head);
  if (!look.begins)
    return named_json || documents ? InputForm::lines : InputForm::text;  // whose reader says in which line there is no JSON
  if (look.objects && named_text && !documents)
    fail(ExitCode::data,
         "{}: its name says text, but it holds JSON. Name its format: --format {} takes an object as a document, --format text the file as "
         "it is.",
         head.name, look.lines ? "jsonl" : "json");
  if (look.objects) return look.lines ? InputForm::lines : InputForm::json;
  if (named_json && head.bytes[head.bytes.find_first_not_of(blanks)] == '{') return InputForm::lines;  // as above
  fail(ExitCode::data, "{}: it begins like JSON but holds no documents ({}). If it is text, give --format text.{}", head.name, look.fault,
       as_objects(head));
}

}  // namespace

bool ends_with_any(const std::string& path, std::initializer_list<std::string_view> endings) {
  return std::ranges::any_of(endings, [&](std::string_view ending) { return path.ends_with(ending); });
}

void refuse_piped_parquet(const std::string& name) {
  fail(ExitCode::usage, "{}: Parquet is read from its end, but this is a pipe. Give a file.", name);
}

std::string passed_through(const InputHead& head, const std::string& program) {
  if (head.piped)
    return fmt::format("... | {} | tessera tokenize - FOLDER", program.starts_with("unzip") ? "funzip"
                                                               : program.starts_with("tar") ? "tar -xO"
                                                                                            : program);
  return fmt::format("{} {} | tessera tokenize - FOLDER", program, quoted(head.path));
}

InputForm form_of(const InputHead& head, const std::string& format, bool documents) {
  refuse_foreign(head);
  const bool parquet = head.bytes.starts_with(parquet_magic),
             wanted = format == "parquet" || (format == "auto" && head.path.ends_with(".parquet"));
  if (head.piped && (wanted || parquet)) refuse_piped_parquet(head.name);
  if (wanted && !parquet && !head.bytes.empty())
    fail(ExitCode::data,
         "{}: {} says Parquet, but the file does not begin like Parquet. Get it again, or name its format: --format text, jsonl or json.",
         head.name, format == "auto" ? "its name" : "--format");
  if (wanted || (parquet && format == "auto")) return InputForm::parquet;
  if (parquet && format != "text") fail(ExitCode::data, "{}: this is Parquet, but --format is {}. Leave --format out.", head.name, format);
  if (format == "text") return InputForm::text;
  if (format == "jsonl") return InputForm::lines;
  if (format == "json") return InputForm::json;
  return form_by_bytes(head, documents);
}

}  // namespace tessera::io
