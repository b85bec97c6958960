#include "io/metrics/metrics.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <fstream>

#include "base/json.hpp"
#include "base/log.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {
namespace {

std::string json_text(const std::string& text) { return Json(text).dump(-1, BadText::replace); }

std::string number(double value) {
  if (!std::isfinite(value)) return "null";
  char text[32];
  auto [end, error] = std::to_chars(text, text + sizeof text, value);
  TESSERA_REQUIRE(error == std::errc());
  return {text, end};
}

std::string value_text(const MetricValue& value) {
  if (auto i = std::get_if<std::int64_t>(&value)) return std::to_string(*i);
  if (auto d = std::get_if<double>(&value)) return number(*d);
  if (auto all = std::get_if<std::vector<std::int64_t>>(&value)) return Json(*all).dump();
  if (auto named = std::get_if<NamedNumbers>(&value)) {
    std::string text;
    for (const auto& [name, x] : *named) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", json_text(name), number(x));
    return "{" + text + "}";
  }
  return json_text(std::get<std::string>(value));
}

/// Whole lines up to the first row of step >= first_step, with whether each is a row. Rows come in the order of steps.
void walk_kept(const PosixFile& file, std::int64_t first_step, const std::function<void(const std::string& line, bool row)>& take) {
  std::ifstream in(file.link_path(), std::ios::binary);
  for (std::string line; std::getline(in, line) && !in.eof();) {  // a last line without its end is torn
    const std::optional<Json> row = Json::try_parse(line);
    const bool good = row && row->is_object();
    if (good && row->contains("step") && row->at("step").is_number_integer() && row->at("step").get<std::int64_t>() >= first_step) break;
    take(line, good);
  }
}

std::int64_t kept_bytes(const PosixFile& file, std::int64_t first_step) {
  std::int64_t kept = 0;
  walk_kept(file, first_step, [&](const std::string& line, bool) { kept += static_cast<std::int64_t>(line.size()) + 1; });
  return kept;
}

/// Whoever reads the file line by line fails at one that is no row: such lines go to PATH.damaged. Returns PATH.
std::string with_rows_alone(const std::string& path, std::int64_t first_step) {
  const PosixFile file = PosixFile::update(path);
  std::vector<std::int64_t> damaged;
  std::int64_t number = 0;
  walk_kept(file, first_step, [&](const std::string&, bool row) {
    ++number;
    if (!row) damaged.push_back(number);
  });
  if (damaged.empty()) return path;
  LineFile aside(path + ".damaged", whole_lines);
  AtomicFile fresh(path);
  std::int64_t end = 0;
  walk_kept(file, first_step, [&](const std::string& line, bool row) {
    const std::string whole = line + "\n";
    if (!row) return aside.write(whole);
    fresh.file().write(end, whole.data(), whole.size());
    end += std::ssize(whole);
  });
  fresh.commit();
  warning("{}: line{} {} {} no row{} of JSON. The old content is in {}.damaged now.", path, damaged.size() > 1 ? "s" : "",
          fmt::join(damaged, ", "), damaged.size() > 1 ? "are" : "is", damaged.size() > 1 ? "s" : "", path);
  return path;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step)
    : file_(with_rows_alone(path, first_step), [&](const PosixFile& file) { return kept_bytes(file, first_step); }) {}

std::string line_of(const MetricRow& row) {
  std::string line = "{";
  for (auto& [key, value] : row) line += fmt::format("{}{}: {}", line.size() > 1 ? ", " : "", json_text(key), value_text(value));
  return line + "}\n";
}

void MetricsFile::write(const MetricRow& row) { file_.write(line_of(row)); }

std::optional<double> row_number(const MetricRow& row, std::string_view key) {
  const auto found = std::ranges::find(row, key, &MetricRow::value_type::first);
  if (found == row.end()) return {};
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  if (const auto* integer = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*integer);
  return {};
}

}  // namespace tessera::io
