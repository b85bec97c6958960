#include "io/metrics/csv_file.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

namespace tessera::io {
namespace {

/// Numbers alone: cells of one kind are what a table is for.
std::string cell(const MetricValue& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return std::to_string(*i);
  if (const auto* d = std::get_if<double>(&value)) return std::isfinite(*d) ? fmt::format("{}", *d) : "";
  return "";
}

}  // namespace

CsvFile::CsvFile(const std::string& path, std::vector<std::string> columns, const std::string& history) : columns_(std::move(columns)) {
  std::string text = fmt::format("{}\r\n", fmt::join(columns_, ","));
  read_rows(history, [&](const MetricRow& row) { text += line_of(row); });
  AtomicFile fresh(path);
  fresh.file().write(0, text.data(), text.size());
  fresh.commit();
  file_ = PosixFile::update(path);
  end_ = static_cast<std::int64_t>(text.size());
}

std::string CsvFile::line_of(const MetricRow& row) const {
  std::string line;
  bool any = false;
  for (std::size_t i = 0; i < columns_.size(); ++i) {
    const auto found = std::ranges::find(row, columns_[i], &MetricRow::value_type::first);
    const std::string text = found == row.end() ? "" : cell(found->second);
    any = any || (i > 1 && !text.empty());
    line += (i > 0 ? "," : "") + text;
  }
  return any ? line + "\r\n" : "";
}

void CsvFile::write(const MetricRow& row) {
  const std::string line = line_of(row);
  file_.write(end_, line.data(), line.size());
  end_ += static_cast<std::int64_t>(line.size());
}

}  // namespace tessera::io
