#include "io/metrics/metrics.hpp"

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

/// Bytes at the head of the file to keep: whole lines up to the first row of step >= first_step. Rows come in the order of steps.
std::int64_t kept_bytes(const PosixFile& file, std::int64_t first_step) {
  std::ifstream in(file.link_path(), std::ios::binary);
  std::string line;
  std::int64_t kept = 0, number = 0;
  while (std::getline(in, line) && !in.eof()) {  // a last line without its end is torn
    ++number;
    const std::optional<Json> row = Json::try_parse(line);
    if (!row)
      warning("{}:{}: this line is no JSON; it stays as it is.", file.path(), number);
    else if (row->contains("step") && row->at("step").is_number_integer() && row->at("step").get<std::int64_t>() >= first_step)
      break;
    kept += static_cast<std::int64_t>(line.size()) + 1;
  }
  return kept;
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step)
    : file_(path, [&](const PosixFile& file) { return kept_bytes(file, first_step); }) {}

void MetricsFile::write(const MetricRow& row) {
  std::string line = "{";
  for (auto& [key, value] : row) line += fmt::format("{}{}: {}", line.size() > 1 ? ", " : "", json_text(key), value_text(value));
  line += "}\n";
  file_.write(line);
}

std::optional<double> row_number(const MetricRow& row, std::string_view key) {
  const auto found = std::ranges::find(row, key, &MetricRow::value_type::first);
  if (found == row.end()) return {};
  if (const auto* real = std::get_if<double>(&found->second)) return *real;
  if (const auto* integer = std::get_if<std::int64_t>(&found->second)) return static_cast<double>(*integer);
  return {};
}

}  // namespace tessera::io
