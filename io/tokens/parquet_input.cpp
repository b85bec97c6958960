#include "io/tokens/parquet_input.hpp"

#include <cstring>
#include "base/json.hpp"

#include "base/check.hpp"
#include "base/types.hpp"
#include "io/files/posix_file.hpp"
#include "io/files/utf8.hpp"
#include "io/tokenizer/child.hpp"
#include "io/tokenizer/worker.hpp"

namespace tessera::io {
namespace {

/// Numbers and texts of an answer, front to back.
class Rows {
 public:
  explicit Rows(std::string bytes) : bytes_(std::move(bytes)) {}
  std::uint64_t number() {
    std::uint64_t value = 0;
    const std::string_view bytes = take(sizeof value);
    std::memcpy(&value, bytes.data(), sizeof value);
    return value;
  }
  std::string_view text() { return take(number()); }

 private:
  std::string_view take(std::size_t bytes) {
    TESSERA_REQUIRE(bytes <= bytes_.size() - at_, "an answer of {} bytes is cut at {}", bytes_.size(), at_);
    at_ += bytes;
    return std::string_view(bytes_).substr(at_ - bytes, bytes);
  }
  std::string bytes_;
  std::size_t at_ = 0;
};

void check_text(const std::string& place, std::string_view text, std::int64_t longest) {
  if (longest > 0 && std::ssize(text) > longest) refuse_long(place, "row", longest);
  Utf8Checker checker;
  auto fault = checker.feed(text);
  if (!fault) fault = checker.finish();
  if (fault) fail(ExitCode::data, "{}: its text is not UTF-8 at byte offset {}. Convert it.", place, fault->offset);
}

}  // namespace

ParquetReader::ParquetReader(const TokenizeOptions& options, UnusedKeys& unused, PreferenceForm& preferences)
    : options_(options), unused_(unused), preferences_(preferences) {}
ParquetReader::~ParquetReader() = default;

void ParquetReader::scan(const std::string& path, const TextVisitor& visit) {
  if (!child_) child_ = start_worker(options_.python, parquet_text, options_.worker_memory);
  try {
    scan_rows(path, visit);
  } catch (const Error& error) {
    if (error.code != ExitCode::environment) throw;
    fail(error.code, "{}: {}", path, error.what());  // which file a process has ended over
  }
}

void ParquetReader::look_at_preference(const std::string& place, std::string_view row) {
  std::vector<JsonField> fields = PreferenceForm::fields();
  if (const std::string fault = read_object(row, fields, [](const std::string&) {}); !fault.empty())
    fail(ExitCode::data, "{}: {}.", place, fault);
  for (JsonField& field : fields) field.byte = 0;  // the row's text is ours
  preferences_.take(place, fields);
}

void ParquetReader::scan_rows(const std::string& path, const TextVisitor& visit) {
  const auto bytes = PosixFile::open(path, ExitCode::data).size();
  const Json asked{{"path", path}, {"field", options_.field}, {"chat", options_.chat}, {"preferences", options_.preferences}};
  const Json opened = Json::parse(ask_worker(*child_, "open", asked.dump()));
  const auto rows = opened.at("rows").get<std::int64_t>();
  for (const Json& name : opened.at("unused")) unused_.add(name.get<std::string>());
  std::int64_t row = 0, shown = 0;  // shown: bytes of the file that count as read
  for (;;) {
    Rows answer(ask_worker(*child_, "next", ""));
    const std::uint64_t count = answer.number();
    if (count == 0) break;
    for (std::uint64_t i = 0; i < count; ++i) {
      const std::string place = fmt::format("{}: row {}", path, ++row);
      const std::string_view before = answer.text(), text = answer.text();
      check_text(place, before, options_.longest_line), check_text(place, text, options_.longest_line);
      if (text.empty()) continue;
      if (options_.preferences) look_at_preference(place, text);
      visit.place(place);
      if (!before.empty()) visit.text(before, false);
      visit.text(text, true), visit.end_document();
    }
    const auto now = static_cast<std::int64_t>(static_cast<double>(bytes) * static_cast<double>(row) / static_cast<double>(rows));
    visit.progress(now - shown);
    shown = now;
  }
  visit.progress(bytes - shown);
}

}  // namespace tessera::io
