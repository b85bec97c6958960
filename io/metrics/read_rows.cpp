#include <algorithm>
#include <fstream>
#include <optional>

#include "base/json.hpp"
#include "io/files/posix_file.hpp"
#include "io/metrics/sink.hpp"

namespace tessera::io {
namespace {

/// None of what a row cannot hold: null, which stands for what is no number, among them.
std::optional<MetricValue> value_of(const Json& json) {
  if (json.is_number_integer()) return json.get<std::int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    std::vector<std::int64_t> all;
    for (const Json& element : json) {
      if (!element.is_number_integer()) return std::nullopt;
      all.push_back(element.get<std::int64_t>());
    }
    return all;
  }
  if (!json.is_object()) return std::nullopt;
  NamedNumbers named;
  for (const auto& [name, number] : json.items())
    if (number.is_number()) named.emplace_back(name, number.get<double>());
  return named;
}

std::optional<MetricRow> row_of(std::string_view line) {
  const std::optional<Json> json = Json::try_parse(line);
  if (!json || !json->is_object()) return std::nullopt;
  MetricRow row;
  for (const auto& [key, value] : json->items())
    if (std::optional<MetricValue> v = value_of(value)) row.emplace_back(key, std::move(*v));
  return row;
}

}  // namespace

std::vector<MetricRow> rows_of(std::string_view text, bool first_is_cut) {
  std::vector<MetricRow> rows;
  if (first_is_cut) text.remove_prefix(std::min(text.find('\n'), text.size()));
  // What has no end may go on.
  for (std::size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
    if (std::optional<MetricRow> row = row_of(text.substr(0, end))) rows.push_back(std::move(*row));
    text.remove_prefix(end + 1);
  }
  return rows;
}

void read_rows(const std::string& path, const std::function<void(const MetricRow&)>& row) {
  const PosixFile file = PosixFile::open(path, ExitCode::storage);
  std::ifstream in(file.link_path(), std::ios::binary);
  std::string line;
  while (std::getline(in, line))
    if (const std::optional<MetricRow> values = row_of(line)) row(*values);
}

}  // namespace tessera::io
