#include <fstream>

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

}  // namespace

void read_rows(const std::string& path, const std::function<void(const MetricRow&)>& row) {
  const PosixFile file = PosixFile::open(path, ExitCode::storage);
  std::ifstream in(file.link_path(), std::ios::binary);
  std::string line;
  while (std::getline(in, line)) {
    const std::optional<Json> json = Json::try_parse(line);
    if (!json || !json->is_object()) continue;
    MetricRow values;
    for (const auto& [key, value] : json->items())
      if (std::optional<MetricValue> v = value_of(value)) values.emplace_back(key, std::move(*v));
    row(values);
  }
}

}  // namespace tessera::io
