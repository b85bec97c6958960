#include "io/checkpoint/survey.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "base/check.hpp"
#include "io/checkpoint/format.hpp"
#include "io/files/path_state.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

CheckpointEntry read_entry(std::int64_t step, const std::string& path) {
  CheckpointEntry entry;
  entry.step = step, entry.path = path;
  const std::string index = path + "/" + index_file;
  if (const PathState there = look_at(index); !there.exists()) {
    entry.fault =
        there.nothing() ? fmt::format("{}: the index is missing.", index) : fmt::format("{}: cannot read it: {}.", index, there.reason);
    return entry;
  }
  try {
    const CheckpointReader reader(path);
    entry.digest = reader.digest(), entry.lineage = reader.meta().lineage, entry.best_step = best_step_of(reader.meta().values);
    if (step < 0) entry.step = reader.meta().step;
    if (entry.step != reader.meta().step)
      entry.fault = fmt::format("{}: it holds step {}. Restore the folder's own name.", path, reader.meta().step);
  } catch (const Error& error) {
    entry.fault = error.what();
  }
  return entry;
}

void list_steps(CheckpointSurvey& survey) {
  std::error_code error;
  std::vector<std::pair<std::int64_t, std::string>> older;
  for (fs::directory_iterator it(survey.root, error), end; !error && it != end; it.increment(error)) {
    std::string name = it->path().filename().string();
    const bool replaced = name.ends_with(replaced_ending);
    if (replaced) name.resize(name.size() - replaced_ending.size());
    if (const auto step = step_of_name(name); !step)
      continue;
    else if (replaced)
      older.emplace_back(*step, it->path().string());
    else
      survey.entries.push_back(read_entry(*step, it->path().string()));
  }
  if (error) {
    survey.fault = fmt::format("{}: cannot list the folder: {}.", survey.root, error.message());
    return;
  }
  for (auto& [step, path] : older)
    if (survey.at_step(step))
      survey.superseded.push_back(path);
    else
      survey.entries.push_back(read_entry(step, path));
  std::ranges::sort(survey.entries, [](auto& a, auto& b) { return a.step > b.step; });
}

/// `latest` as a folder: a copy of a step, made by a program that follows links.
void follow_copy(CheckpointSurvey& survey, const std::string& path) {
  CheckpointEntry copy = read_entry(-1, path);
  const CheckpointEntry* same = survey.at_step(copy.step);
  if (!copy.fault.empty())
    survey.latest_fault = copy.fault;
  else if (!same || !same->fault.empty())
    survey.latest = std::move(copy);
  else if (same->digest == copy.digest)
    survey.latest = *same;
  else
    survey.latest_fault = fmt::format("{}: it is a folder that holds step {}, but {} holds another save of that step. Remove one of them.",
                                      path, copy.step, same->path);
}

void follow_link(CheckpointSurvey& survey, const std::string& path) {
  std::error_code error;
  const fs::path target = fs::read_symlink(path, error);
  if (error) {
    survey.latest_fault = fmt::format("{}: cannot read the link: {}.", path, error.message());
    return;
  }
  const auto step = step_of_name(target.filename().string());
  // A step that is listed is known by its name: also where a kill has left its older save alone (".replaced").
  if (const auto* entry = step ? survey.at_step(*step) : nullptr; entry && !target.has_parent_path()) {
    if (entry->fault.empty())
      survey.latest = *entry;
    else
      survey.latest_fault = entry->fault;
    return;
  }
  if (const PathState there = look_at(path); !there.exists()) {
    survey.latest_fault = fmt::format("{} -> {}: cannot read it: {}.", path, target.string(), there.reason);
    return;
  }
  const std::string leads_to = fs::canonical(path, error).string();
  CheckpointEntry entry = read_entry(-1, error ? path : leads_to);
  if (const auto* listed = survey.at_step(entry.step); listed && listed->digest == entry.digest) entry = *listed;
  if (entry.fault.empty())
    survey.latest = std::move(entry);
  else
    survey.latest_fault = entry.fault;
}

void follow_latest(CheckpointSurvey& survey) {
  const std::string path = survey.root + "/latest";
  const PathState there = look_at_link(path);
  if (there.nothing()) return;
  if (there.unknown())
    survey.latest_fault = fmt::format("{}: cannot read it: {}.", path, there.reason);
  else if (there.kind == PathState::Kind::folder)
    follow_copy(survey, path);
  else if (there.kind == PathState::Kind::file)
    survey.latest_fault = fmt::format("{}: it is a file, but a link to a step is expected.", path);
  else
    follow_link(survey, path);
}

/// Newer lines first, in a line the higher step.
bool newer(const CheckpointEntry& a, const CheckpointEntry& b) { return a.line() != b.line() ? a.line() > b.line() : a.step > b.step; }

}  // namespace

std::optional<std::int64_t> step_of_name(std::string_view name) {
  if (!name.starts_with("step-")) return std::nullopt;
  name.remove_prefix(5);
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  if (error != std::errc() || end != name.data() + name.size() || step < 0) return std::nullopt;
  return step;
}

const CheckpointEntry* CheckpointSurvey::at_step(std::int64_t step) const {
  const auto it = std::ranges::find(entries, step, &CheckpointEntry::step);
  return it == entries.end() ? nullptr : &*it;
}

CheckpointSurvey survey_checkpoints(const std::string& root) {
  CheckpointSurvey survey;
  survey.root = root;
  const PathState there = look_at(root);
  if (there.nothing()) return survey;
  if (there.unknown()) {
    survey.fault = fmt::format("{}: cannot read the folder: {}.", root, there.reason);
    return survey;
  }
  list_steps(survey);
  if (survey.fault.empty()) follow_latest(survey);
  return survey;
}

Head find_head(const CheckpointSurvey& survey) {
  if (!survey.fault.empty()) return {.entry = {}, .fault = survey.fault};
  if (survey.latest || !survey.latest_fault.empty()) return {.entry = survey.latest, .fault = survey.latest_fault};
  // Without `latest`: what cannot be read may be the newest.
  Head head;
  for (const CheckpointEntry& entry : survey.entries)
    if (entry.fault.empty() && (!head.entry || newer(entry, *head.entry))) head.entry = entry;
  for (const CheckpointEntry& entry : survey.entries)
    if (!entry.fault.empty() && (!head.entry || entry.step > head.entry->step)) return {.entry = {}, .fault = entry.fault};
  return head;
}

bool descends(const CheckpointEntry& entry, const Lineage& lineage) {
  for (std::size_t k = 0; k < lineage.size(); ++k)
    if (lineage[k].number == entry.line()) return k + 1 == lineage.size() || entry.step <= lineage[k + 1].from_step;
  return false;
}

std::vector<CheckpointEntry> by_descent(const CheckpointSurvey& survey, const Lineage& lineage) {
  std::vector<CheckpointEntry> out;
  for (const CheckpointEntry& entry : survey.entries)
    if (entry.fault.empty()) out.push_back(entry);
  std::ranges::sort(out, newer);
  std::ranges::stable_partition(out, [&](const CheckpointEntry& entry) { return descends(entry, lineage); });
  return out;
}

}  // namespace tessera::io
