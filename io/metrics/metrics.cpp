#include "io/metrics/metrics.hpp"

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

struct MetricsFile::Impl {
  std::string path;
  PosixFile file;
  std::int64_t end = 0;

  void write_anew();
  void replace();
};

/// Puts a file with the rows so far in place of what has the name.
void MetricsFile::Impl::replace() {
  std::string rows(static_cast<std::size_t>(end), '\0');
  rows.resize(file.read(0, rows.data(), rows.size()));  // the open file has them still, wherever its name went
  AtomicFile fresh(path);
  fresh.file().write(0, rows.data(), rows.size());
  fresh.commit();
  file = PosixFile::update(path);
  end = static_cast<std::int64_t>(rows.size());
}

void MetricsFile::Impl::write_anew() {
  for (int n = 1; !look_at_link(path).nothing(); ++n)
    if (const std::string aside = fmt::format("{}.old-{}", path, n); look_at_link(aside).nothing()) rename_path(path, aside);
  replace();
  warning("{} was moved, removed or replaced while the run writes it: it was written anew with all its rows.", path);
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->file = PosixFile::update(path);
  impl_->end = kept_bytes(impl_->file, first_step);
  if (impl_->file.has_other_names())
    impl_->replace();  // what else is called so keeps its rows
  else
    impl_->file.truncate(impl_->end);
}
MetricsFile::~MetricsFile() = default;

void MetricsFile::write(const MetricRow& row) {
  std::string line = "{";
  for (auto& [key, value] : row) line += fmt::format("{}{}: {}", line.size() > 1 ? ", " : "", json_text(key), value_text(value));
  line += "}\n";
  // What the file system does not tell is left to the write.
  if (const PathState there = look_at(impl_->path); !there.unknown() && !there.same_as(impl_->file.state())) impl_->write_anew();
  impl_->file.write(impl_->end, line.data(), line.size());
  impl_->end += static_cast<std::int64_t>(line.size());
}

}  // namespace tessera::io
