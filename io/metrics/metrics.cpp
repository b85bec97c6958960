#include "io/metrics/metrics.hpp"

#include <charconv>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {
namespace {

std::string quoted(const std::string& text) { return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); }

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
  if (auto all = std::get_if<std::vector<std::int64_t>>(&value)) return nlohmann::json(*all).dump();
  if (auto named = std::get_if<NamedNumbers>(&value)) {
    std::string text;
    for (const auto& [name, x] : *named) text += fmt::format("{}{}:{}", text.empty() ? "" : ",", quoted(name), number(x));
    return "{" + text + "}";
  }
  return quoted(std::get<std::string>(value));
}

/// Bytes at the head of the file to keep: whole lines up to the first row of step >= first_step. Rows come in the order of steps.
std::int64_t kept_bytes(const std::string& path, std::int64_t first_step) {
  std::ifstream in(path, std::ios::binary);
  std::string line;
  std::int64_t kept = 0, number = 0;
  while (std::getline(in, line) && !in.eof()) {  // a last line without its end is torn
    ++number;
    auto row = nlohmann::json::parse(line, nullptr, false);
    if (row.is_discarded())
      warning("{}:{}: this line is no JSON; it stays as it is.", path, number);
    else if (row.is_object() && row.contains("step") && row["step"].is_number_integer() && row["step"].get<std::int64_t>() >= first_step)
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
};

void MetricsFile::Impl::write_anew() {
  std::string rows(static_cast<std::size_t>(end), '\0');
  rows.resize(file.read(0, rows.data(), rows.size()));  // the open file has them still, wherever its name went
  for (int n = 1; !look_at_link(path).nothing(); ++n)
    if (const std::string aside = fmt::format("{}.old-{}", path, n); look_at_link(aside).nothing()) rename_path(path, aside);
  AtomicFile fresh(path);
  fresh.file().write(0, rows.data(), rows.size());
  fresh.commit();
  file = PosixFile::update(path);
  end = static_cast<std::int64_t>(rows.size());
  warning("{} was moved, removed or replaced while the run writes it: it was written anew with all its rows.", path);
}

MetricsFile::MetricsFile(const std::string& path, std::int64_t first_step) : impl_(std::make_unique<Impl>()) {
  impl_->path = path;
  impl_->file = PosixFile::update(path);
  if (const char* other = impl_->file.other_than_regular())
    fail(ExitCode::storage, "{}: this is a {}, and a regular file is needed. Move it away.", path, other);
  impl_->end = kept_bytes(path, first_step);
  impl_->file.truncate(impl_->end);
}
MetricsFile::~MetricsFile() = default;

void MetricsFile::write(const MetricRow& row) {
  std::string line = "{";
  for (auto& [key, value] : row) line += fmt::format("{}{}: {}", line.size() > 1 ? ", " : "", quoted(key), value_text(value));
  line += "}\n";
  // What the file system does not tell is left to the write.
  if (const PathState there = look_at(impl_->path); !there.unknown() && !there.same_as(impl_->file.state())) impl_->write_anew();
  impl_->file.write(impl_->end, line.data(), line.size());
  impl_->end += static_cast<std::int64_t>(line.size());
}

}  // namespace tessera::io
