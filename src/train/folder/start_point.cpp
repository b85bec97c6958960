#include "train/folder/start_point.hpp"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/log.hpp"
#include "io/checkpoint/format.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

[[noreturn]] void refuse(const std::string& fault) {
  fail(ExitCode::checkpoint,
       "{} The run does not start over while it has a checkpoint that cannot be read. Fix it, or choose: run.resume=newest-good resumes "
       "from the newest checkpoint that passes verification; run.resume=PATH from the one that you name; run.resume=never "
       "run.overwrite=true moves the run aside and starts another.",
       fault);
}

/// line.json, as far as it can be read.
struct Record {
  std::optional<io::Lineage> lineage;
  std::string fault;
};

Record read_record(const std::string& checkpoints) {
  const std::string path = line_file(checkpoints);
  const io::PathState there = io::look_at(path);
  if (there.nothing()) return {};
  if (there.unknown()) return {.lineage = {}, .fault = fmt::format("{}: cannot read it: {}.", path, there.reason)};
  try {
    return {.lineage = io::parse_lineage(io::read_small_file(path, ExitCode::checkpoint), path), .fault = ""};
  } catch (const Error& error) {
    return {.lineage = {}, .fault = error.what()};
  }
}

/// The lineage that the run under way has: recorded, or that of its newest checkpoint.
io::Lineage current_lineage(const Record& record, const io::Head& head) {
  if (record.lineage) return *record.lineage;
  return head.entry ? head.entry->lineage : io::Lineage(1);
}

/// The step that `named` means among the run's own checkpoints: also of one that is gone. -1: `latest`. Nothing: not one of them.
std::optional<std::int64_t> own_step(const std::string& named, const std::string& checkpoints) {
  std::error_code ignored;  // a path that cannot be resolved is none of ours, and refused where it is opened
  fs::path path = fs::absolute(named).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  if (path.filename() == io::index_file) path = path.parent_path();
  const fs::path own = fs::weakly_canonical(checkpoints, ignored);
  if (path.filename() == "latest" && fs::weakly_canonical(path.parent_path(), ignored) == own) return -1;
  path = fs::weakly_canonical(path, ignored);
  if (path.parent_path() != own) return std::nullopt;
  return io::step_of_name(path.filename().string());
}

/// Whether the lineage has gone back to `step` already. Another save of the same step that stands there now is another checkpoint.
bool went_back_to(const io::Lineage& lineage, std::int64_t step, const io::CheckpointSurvey& survey) {
  const io::CheckpointEntry* there = survey.at_step(step);
  return std::ranges::any_of(lineage.begin() + 1, lineage.end(), [&](const io::CheckpointLine& line) {
    return line.from_step == step && (!there || !there->fault.empty() || there->digest == line.from_digest);
  });
}

/// Whether the run began from this checkpoint of another one, which need not be there any more.
bool began_from(const std::string& named, const Record& record, const io::Head& head) {
  std::error_code ignored;
  return current_lineage(record, head).front().from == fs::weakly_canonical(named, ignored).string();
}

/// Whether `best` is named, and leads to what the run has saved since it last went back: a command that is started again goes on.
bool is_best_of_current_line(const std::string& named, const io::CheckpointSurvey& survey, const io::Lineage& lineage) {
  fs::path path = fs::absolute(named).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();
  std::error_code no_link;
  const auto step = io::step_of_name(fs::read_symlink(path, no_link).filename().string());
  const io::CheckpointEntry* entry = path.filename() == "best" && step ? survey.at_step(*step) : nullptr;
  return entry && entry->fault.empty() && lineage.size() > 1 && entry->line() == lineage.back().number;
}

Origin go_on(const io::Head& head) {
  if (!head.fault.empty()) refuse(head.fault);
  return {.checkpoint = head.entry ? head.entry->path : "", .candidates = {}};
}

Origin newest_good(const io::CheckpointSurvey& survey, const io::Head& head) {
  if (!survey.fault.empty()) fail(ExitCode::checkpoint, "{} The folder cannot be accessed: fix the path or the file system.", survey.fault);
  Origin start;
  if (!survey.latest_fault.empty()) warning("run.resume = newest-good skipped latest: {}", survey.latest_fault);
  for (const io::CheckpointEntry& entry : survey.entries)
    if (!entry.fault.empty() && entry.fault != survey.latest_fault)
      warning("run.resume = newest-good skipped step {}: {}", entry.step, entry.fault);
  for (const io::CheckpointEntry& entry : io::by_descent(survey, current_lineage(read_record(survey.root), head)))
    start.candidates.push_back(entry.path);
  // `latest` may be the copy of a step that does not stand beside it.
  if (survey.latest && std::ranges::find(start.candidates, survey.latest->path) == start.candidates.end())
    start.candidates.insert(start.candidates.begin(), survey.latest->path);
  if (start.candidates.empty() && !(survey.entries.empty() && survey.latest_fault.empty()))
    fail(ExitCode::checkpoint,
         "{}: none of its checkpoints can be read. Name another one by run.resume=PATH, or start over with run.resume=never "
         "run.overwrite=true.",
         survey.root);
  return start;
}

}  // namespace

std::string line_file(const std::string& checkpoints) { return checkpoints + "/line.json"; }

Origin find_origin(const std::string& resume, const std::string& checkpoints) {
  const io::CheckpointSurvey survey = io::survey_checkpoints(checkpoints);
  const io::Head head = io::find_head(survey);
  if (resume == "newest-good") return newest_good(survey, head);
  const Record record = read_record(checkpoints);
  if (!record.fault.empty()) refuse(record.fault);
  if (resume == "auto") return go_on(head);
  const std::optional<std::int64_t> own = own_step(resume, checkpoints);
  if (own == -1) return go_on(head);
  if (own && is_best_of_current_line(resume, survey, current_lineage(record, head))) {
    info("run.resume: this run returned to its best checkpoint already, and step {} is the best since; to return there name {}/{}", *own,
         checkpoints, io::checkpoint_name(*own));
    return go_on(head);
  }
  if (own) {
    if (!went_back_to(current_lineage(record, head), *own, survey)) return {.checkpoint = resume, .candidates = {}, .goes_back = true};
    info(
        "run.resume: this run returned to step {} already, and continues from its later checkpoints; to start there again, start another "
        "run: run.output_dir=NEW run.resume={}",
        *own, resume);
    return go_on(head);
  }
  const bool nothing = !head.entry && head.fault.empty(), mistyped = io::look_at(resume).nothing() && !began_from(resume, record, head);
  if (nothing || mistyped) return {.checkpoint = resume, .candidates = {}};  // a path that is not there is refused where it is opened
  const Origin start = go_on(head);
  info("run.resume = {} starts a run, but this one has its own checkpoints already and resumes from {}", resume, start.checkpoint);
  return start;
}

std::vector<std::string> checkpoints_before(const std::string& checkpoints, const io::Lineage& lineage, std::int64_t step,
                                            std::int64_t older) {
  const io::CheckpointSurvey survey = io::survey_checkpoints(checkpoints);
  if (!survey.fault.empty())
    fail(ExitCode::checkpoint, "{} The run cannot roll back by itself: fix the path or the file system.", survey.fault);
  std::vector<io::CheckpointEntry> entries;
  for (const io::CheckpointEntry& entry : io::by_descent(survey, lineage))
    if (entry.step < step && io::descends(entry, lineage)) entries.push_back(entry);
  std::vector<std::string> paths;
  for (const io::CheckpointEntry& entry : entries) paths.push_back(entry.path);
  paths.erase(paths.begin(), paths.begin() + std::min<std::int64_t>(older, std::max<std::int64_t>(std::ssize(paths) - 1, 0)));
  // A run that has not saved yet goes back to where it began: to the checkpoint of another run or of an import, if it began with one.
  if (const io::CheckpointLine& begin = lineage.front(); paths.empty() && !begin.from.empty()) paths.push_back(begin.from);
  return paths;
}

io::Lineage first_lineage(const std::string& checkpoint) {
  io::CheckpointLine line;
  line.number = 1;
  if (checkpoint.empty()) return {line};
  const io::CheckpointReader reader(checkpoint);
  line.from_step = reader.meta().step, line.from_digest = reader.digest(), line.from = reader.folder();
  return {line};
}

io::Lineage lineage_from(const std::string& checkpoint, bool goes_back, const std::string& checkpoints) {
  const io::CheckpointSurvey survey = io::survey_checkpoints(checkpoints);
  io::CheckpointLine begun = first_lineage(checkpoint).back();
  const io::Head head = io::find_head(survey);
  const Record record = read_record(checkpoints);  // one that cannot be read is written anew
  // Begun from here, not saved yet: still the same line.
  if (record.lineage && record.lineage->back().from_digest == begun.from_digest &&
      std::ranges::find(survey.entries, record.lineage->back().number, &io::CheckpointEntry::line) == survey.entries.end())
    return *record.lineage;
  std::int64_t highest = record.lineage ? record.lineage->back().number : 0;
  const io::CheckpointEntry* own = head.entry && head.entry->digest == begun.from_digest ? &*head.entry : nullptr;
  for (const io::CheckpointEntry& entry : survey.entries) {
    highest = std::max(highest, entry.line());
    if (entry.digest == begun.from_digest) own = &entry;
  }
  if (!own) {
    begun.number = survey.entries.empty() ? 1 : highest + 1;
    return {begun};
  }
  const bool newest_of_line = head.entry && head.entry->digest == own->digest && std::ranges::none_of(survey.entries, [&](auto& entry) {
                                return entry.fault.empty() && entry.line() == own->line() && entry.step > own->step;
                              });
  io::Lineage lineage = own->lineage;
  if (newest_of_line && !goes_back) return lineage;
  begun.number = highest + 1;
  lineage.push_back(begun);
  return lineage;
}

}  // namespace tessera
