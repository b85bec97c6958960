// tessera verify: whether what stands on disk is what was written: all checkpoints of a run, one of them, or an exported model.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>
#include "base/json.hpp"

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/types.hpp"
#include "commands/commands.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/byte_progress.hpp"
#include "io/files/path_state.hpp"
#include "io/safetensors/safetensors_model.hpp"
#include "models/model_folder.hpp"

namespace tessera {
namespace {

namespace fs = std::filesystem;
struct VerifyOptions {
  std::vector<std::string> paths;
  bool json = false;
};

/// One checkpoint or model.
struct Verified {
  std::string path, kind;  ///< "checkpoint", "model", or "link": `latest`
  std::string fault;       ///< "" where it is whole
  bool gone = false;       ///< removed meanwhile by the run that it is of, as `fault` says: no damage
  std::int64_t bytes = 0;  ///< of values
  std::int64_t step = -1;
  double seconds = 0;
};

Verified verify_checkpoint(const std::string& path) {
  Verified verdict{.path = path, .kind = "checkpoint", .fault = ""};
  const double begin = now_seconds();
  try {
    io::read_checkpoint(path, [&](const io::CheckpointReader& reader) {
      verdict.path = reader.folder(), verdict.bytes = reader.layout().bytes(), verdict.step = reader.meta().step;
      io::ByteProgress progress("verify " + fs::path(verdict.path).filename().string(), verdict.bytes);
      reader.verify([&](std::int64_t done, std::int64_t) { progress.set(done); });
    });
  } catch (const Error& error) {
    verdict.fault = error.what();
  }
  verdict.seconds = now_seconds() - begin;
  return verdict;
}

Verified verify_model(const std::string& path) {
  Verified verdict{.path = path, .kind = "model", .fault = ""};
  try {
    verdict.bytes = io::SafetensorsModel(path).bytes();
  } catch (const Error& error) {
    verdict.fault = error.what();
  }
  return verdict;
}

/// All that stands in a run's folder of checkpoints, oldest first, and then where `latest` leads. Of a run at work also what takes the
/// place of what it removes meanwhile.
void verify_all(const std::string& root, std::vector<Verified>& verdicts) {
  std::int64_t seen = -1;
  for (int tries = 1;; ++tries) {
    const io::CheckpointSurvey survey = io::survey_checkpoints(root);
    if (!survey.fault.empty()) fail(ExitCode::checkpoint, "{}", survey.fault);
    if (survey.entries.empty())
      fail(ExitCode::checkpoint, "{}: it has no checkpoint. Name a run's folder, or one that has saved.{}", root,
           instead_of_checkpoint(root));
    bool gone = false;
    for (auto entry = survey.entries.rbegin(); entry != survey.entries.rend(); ++entry) {
      if (entry->step <= seen) continue;
      Verified verdict = verify_checkpoint(entry->path);
      verdict.gone = !verdict.fault.empty() && io::look_at(entry->path).nothing();
      gone = verdict.gone, seen = entry->step;
      verdicts.push_back(std::move(verdict));
    }
    if (gone && tries < io::most_checkpoints_tried) continue;  // the newest of them: there is a newer one
    if (!survey.latest_fault.empty()) verdicts.push_back({.path = root + "/latest", .kind = "link", .fault = survey.latest_fault});
    return;
  }
}

void verify(const std::string& path, std::vector<Verified>& verdicts) {
  using Kind = io::PathState::Kind;
  const io::PathState state = io::look_at(path);
  if (state.nothing()) fail(ExitCode::usage, "{}: there is no such file or folder.{}", path, instead_of_checkpoint(path));
  if (state.unknown()) fail(ExitCode::environment, "{}: it cannot be read: {}", path, state.reason);
  const bool is_run = io::look_at(path + "/checkpoints").kind == Kind::folder;
  if (state.kind == Kind::file || !io::look_at(path + "/checkpoint.h5").nothing()) return verdicts.push_back(verify_checkpoint(path));
  if (!is_run && io::has_model(path)) return verdicts.push_back(verify_model(path));
  // A damaged checkpoint may lack its index: it is one by its name.
  if (io::step_of_name(fs::path(path).lexically_normal().filename().string())) return verdicts.push_back(verify_checkpoint(path));
  verify_all(is_run ? path + "/checkpoints" : path, verdicts);
  if (is_run && !io::survey_checkpoints(path + "/weights").entries.empty()) verify_all(path + "/weights", verdicts);
}

void print(const Verified& v) {
  if (v.gone)
    put("gone     {}: its run removed it before it was read\n", v.path);
  else if (!v.fault.empty())
    put("DAMAGED  {}\n         {}\n", v.path, v.fault);
  else if (v.kind == "model")
    put("whole    {}  {}: its files are as long as their headers say (safetensors have no checksums)\n", v.path,
        human_bytes(static_cast<double>(v.bytes)));
  else
    put("whole    {}  step {}, {} in {:.2f} s, every checksum\n", v.path, v.step, human_bytes(static_cast<double>(v.bytes)), v.seconds);
}

int run_verify(const VerifyOptions& o) {
  std::vector<Verified> verdicts;
  std::size_t shown = 0;
  for (const std::string& path : o.paths) {
    verify(path, verdicts);
    for (; !o.json && shown < verdicts.size(); ++shown) print(verdicts[shown]);
  }
  std::size_t found = 0, damaged = 0;
  Json rows = Json::array();
  for (const Verified& v : verdicts) {
    if (v.gone) continue;
    ++found, damaged += !v.fault.empty();
    rows.push_back({{"path", v.path}, {"kind", v.kind}, {"whole", v.fault.empty()}, {"bytes", v.bytes}});
    if (v.step >= 0) rows.back()["step"] = v.step;
    if (!v.fault.empty()) rows.back()["fault"] = v.fault;
  }
  if (o.json)
    put("{}\n", Json{{"whole", found - damaged}, {"damaged", damaged}, {"found", rows}}.dump(2, BadText::replace));
  else if (verdicts.size() > 1)
    put("{} of {} are whole\n", found - damaged, found);
  return static_cast<int>(damaged == 0 ? ExitCode::ok : ExitCode::checkpoint);
}

}  // namespace

void add_verify(const Command& app) {
  const Command command = app.command("verify", "Check every byte of checkpoints against their checksums");
  auto o = std::make_shared<VerifyOptions>();
  command.option("FOLDER", o->paths, "A run's folder (all of its checkpoints), a step folder, checkpoints/latest, or an exported model")
      .required();
  command.flag("--json", o->json, "Print JSON");
  command.footer(
      "Example:\n  tessera verify runs/quickstart\n  tessera verify runs/a/checkpoints/latest out/\nStatus 4 if one is damaged.");
  command.does([o] { return run_verify(*o); });
}

}  // namespace tessera
