#include "train/observe/exposition.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/clock.hpp"
#include "base/json.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"
#include "base/version.hpp"
#include "io/files/posix_file.hpp"
#include "topology/mesh.hpp"
#include "train/save/save_room.hpp"

namespace tessera {
namespace {

constexpr double disk_seconds = 10;

/// The folder's last part, and what keeps runs of the same name apart.
Labels labels_of(const std::string& folder) {
  const std::filesystem::path path = std::filesystem::absolute(folder).lexically_normal();
  const std::string name = path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
  return {{"run", printable_name(name)}, {"run_id", hash_text(path.string()).hex().substr(0, 8)}};
}

Labels info_of(const RunParts& run) {
  return {{"version", version()},
          {"host", run.world.place().host},
          {"layout", fmt::format("{}, ZeRO stage {}", describe(make_mesh(run.deck, run.world.ranks())), run.deck.zero.stage)}};
}

/// A list of targets, as Prometheus reads it from a file (file_sd_configs).
void write_target(const RunFolder& folder, ListenAddress address, const std::string& host, const Labels& labels) {
  if (address.is_any()) address.host = host;
  Json names = Json::object();
  for (const auto& [name, value] : labels) names[name] = value;
  Json target = Json::object();
  target["targets"] = Json::array({Json(address.str())});
  target["labels"] = names;
  const std::string text = Json::array({target}).dump() + "\n";
  io::AtomicFile file(folder.prometheus());
  file.file().write(0, text.data(), text.size());
  file.commit();
}

std::vector<std::string> paths_of(const TrainingData& data) {
  std::vector<std::string> paths;
  for (const SampleFile& file : data.files()) paths.push_back(file.path());
  return paths;
}

}  // namespace

std::unique_ptr<io::MetricsEndpoint> open_exposition(const MetricsKeys& keys) {
  if (!keys.prometheus_folder.empty()) {
    io::require_prometheus("metrics.prometheus_folder");
    std::error_code ignored;
    if (!std::filesystem::is_directory(keys.prometheus_folder, ignored) || access(keys.prometheus_folder.c_str(), W_OK | X_OK) != 0)
      fail(ExitCode::environment,
           "metrics.prometheus_folder = \"{}\" is not a folder that this user may write to. Name the one that the node exporter reads (its "
           "--collector.textfile.directory), or leave the key out",
           keys.prometheus_folder);
  }
  if (keys.prometheus.empty()) return nullptr;
  io::require_prometheus("metrics.prometheus");
  return std::make_unique<io::MetricsEndpoint>(*parse_listen_address(keys.prometheus), "metrics.prometheus");
}

Exposition::Exposition(const RunParts& run) : run_(run) {
  run.world.together([&] {
    if (run.world.rank() != 0) return;
    ::unlink(run.folder.prometheus().c_str());  // of a start that failed
    const std::string& files = run.deck.metrics.prometheus_folder;
    if (!run.endpoint && files.empty()) return;
    const Labels labels = labels_of(run.folder.path);
    figures_.emplace(labels, info_of(run), paths_of(run.data));
    state_ = {.launched = unix_seconds() - (now_seconds() - run.launched),
              .unsaved_since = unix_seconds(),
              .steps = static_cast<double>(run.deck.run.steps),
              .ranks = static_cast<double>(run.world.ranks())};
    const SaveBytes bytes = save_bytes(run.engine.checkpoint_layout(), run.world.ranks());
    state_.save_bytes = static_cast<double>(bytes.changing + bytes.constant);
    if (!files.empty()) text_file_.emplace(fmt::format("{}/tessera-{}-{}.prom", files, labels[0].second, labels[1].second));
    publish();  // first: whoever reads the target finds figures there
    if (run.endpoint) {
      write_target(run.folder, run.endpoint->address(), run.world.place().host, labels);
      info("figures for Prometheus: http://{}/metrics; {} is a list of targets with this address", run.endpoint->address().str(),
           run.folder.prometheus());
    }
  });
}

Verdict Exposition::after(const StepEnd& end) {
  if (!figures_ || !end.report.not_finite) return Verdict::go_on;
  state_.not_finite = true;
  publish();
  return Verdict::go_on;
}

void Exposition::write(const io::MetricRow& row) {
  if (!figures_) return;
  figures_->row(row);
  const bool saved = std::ranges::find(row, "saved", &io::MetricRow::value_type::first) != row.end();
  if (saved) state_.unsaved_since = io::row_number(row, "time").value_or(0) - io::row_number(row, "save_seconds").value_or(0);
  publish();
}

void Exposition::look_at_disk() {
  const double now = now_seconds();
  if (looked_ > 0 && now - looked_ < disk_seconds) return;
  looked_ = now;
  struct statvfs s;
  if (statvfs(run_.folder.checkpoints().c_str(), &s) == 0)
    state_.free_bytes = static_cast<double>(s.f_bavail) * static_cast<double>(s.f_frsize);
}

void Exposition::publish() {
  look_at_disk();
  const io::Families families = figures_->families(state_);
  if (run_.endpoint) run_.endpoint->publish(families);
  if (text_file_) text_file_->publish(families);
}

void Exposition::finish(std::int64_t) {
  if (text_file_) text_file_->remove();
  if (run_.endpoint) ::unlink(run_.folder.prometheus().c_str());
}

}  // namespace tessera
