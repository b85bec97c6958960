// Folders and their order: what makes a save atomic.
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <set>

#include "base/log.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {
namespace {

namespace fs = std::filesystem;

/// Removes a checkpoint so that a kill halfway leaves nothing that looks complete.
void remove_checkpoint(const fs::path& path) {
  fs::path doomed = path;
  if (!path.string().ends_with(".partial")) {
    doomed = path.string() + ".removed.partial";
    fs::remove_all(doomed);
    fs::rename(path, doomed);
  }
  fs::remove_all(doomed);
}

/// Makes `partial` be `final`, also where `final` exists: the old one is either fully there or fully replaced.
void move_into_place(const std::string& partial, const std::string& final) {
  if (look_at_link(final).nothing()) return rename_path(partial, final);
  if (::renameat2(AT_FDCWD, partial.c_str(), AT_FDCWD, final.c_str(), RENAME_EXCHANGE) == 0) return;
  // Not every file system can exchange two names. A survey knows ".replaced", should a kill come between these two.
  const std::string aside = final + std::string(replaced_ending);
  std::error_code ignored;
  fs::remove_all(aside, ignored);
  rename_path(final, aside);
  rename_path(partial, final);
}

/// Whether the checkpoint at `path` can be read, with all its shards; its digest then.
std::optional<std::string> whole_digest(const std::string& path) {
  try {
    const CheckpointReader reader(path);
    reader.require_shards();
    return reader.digest();
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// `latest` is a folder, a copy of a step: gives it the step's name. A kill between any two lines leaves either name with a whole step.
void settle_copy(const std::string& root, const std::string& latest) {
  const CheckpointReader copy(latest);
  const std::string step = root + "/" + checkpoint_name(copy.meta().step);
  if (look_at_link(step).nothing()) {
    rename_path(latest, step);
  } else if (const auto digest = whole_digest(step); digest == copy.digest()) {
    const std::string doomed = step + ".copy.partial";
    fs::remove_all(doomed);
    rename_path(latest, doomed);
    fs::remove_all(doomed);
  } else if (digest) {
    fail(ExitCode::checkpoint, "{} and {} hold different saves of step {}. Remove one of them.", latest, step, copy.meta().step);
  } else {
    copy.require_shards();  // never a broken copy in place of what is there
    rename_path(step, step + ".damaged");
    rename_path(latest, step);
    warning("{} could not be read; it is {}.damaged now, and the copy of it in {} replaced it", step, step, latest);
  }
  info("{} was a folder, as copies that follow links make it; it is a link again", latest);
}

/// What goes after a save: see commit_checkpoint.
std::vector<std::string> superfluous(const CheckpointSurvey& survey, const CheckpointEntry& saved, const Retention& retention) {
  const std::int64_t keep = retention.newest;
  const auto counts = [&](std::int64_t step) { return retention.due == 0 || step % retention.due == 0; };
  std::int64_t whole = counts(saved.step);
  std::vector<std::string> out;
  std::set<std::int64_t> best{saved.best_step};  // of what stays
  for (const CheckpointEntry& entry : survey.entries) {
    if (!entry.fault.empty() || entry.step >= saved.step) continue;
    if (entry.line() == saved.line() && whole < keep && counts(entry.step))
      whole += whole_digest(entry.path).has_value(), best.insert(entry.best_step);
    else if (retention.best && best.contains(entry.step) && descends(entry, saved.lineage))
      continue;
    else if (retention.every == 0 || entry.step % retention.every != 0 || !descends(entry, saved.lineage))
      out.push_back(entry.path);
  }
  if (whole < keep) out.clear();
  return out;
}

void prune(const std::string& root, std::int64_t step, const Retention& retention) {
  const CheckpointSurvey survey = survey_checkpoints(root);
  const CheckpointEntry* saved = survey.at_step(step);
  if (!saved || !saved->fault.empty()) return;  // gone or changed under our hands: nothing is superfluous then
  std::vector<std::string> doomed = superfluous(survey, *saved, retention);
  doomed.insert(doomed.end(), survey.superseded.begin(), survey.superseded.end());
  for (const std::string& path : doomed) try {
      remove_checkpoint(path);
    } catch (const std::exception& e) {
      warning("{}: an old checkpoint could not be removed: {}. Remove it by hand.", path, e.what());
    }
}

/// Of a run that once kept its best checkpoint and does no more.
void drop_dangling_best(const std::string& root) {
  const std::string link = root + "/best";
  std::error_code no_link;
  const fs::path target = fs::read_symlink(link, no_link);
  if (!no_link && look_at_link(root + "/" + target.string()).nothing()) ::unlink(link.c_str());
}

}  // namespace

void remove_unfinished(const std::string& root) {
  std::error_code e;
  for (fs::directory_iterator it(root, e), end; !e && it != end; it.increment(e))
    if (it->path().filename().string().starts_with("step-") && it->path().extension() == ".partial") {
      std::error_code failed;
      fs::remove_all(it->path(), failed);
      if (failed) fail_storage("remove what an unfinished save left", it->path().string(), failed.value());
    }
  if (e) fail_storage("list the folder", root, e.value());
}

void begin_checkpoint(const std::string& root, std::int64_t step) {
  std::error_code e;
  fs::create_directories(root, e);
  if (e) fail_storage("create the folder", root, e.value());
  remove_unfinished(root);
  const std::string partial = partial_folder(root, step);
  // New, and no folder or link that somebody has put there meanwhile.
  if (!fs::create_directory(partial, e)) fail_storage("create the folder", partial, e ? e.value() : EEXIST);
}

void commit_checkpoint(const std::string& root, std::int64_t step, const Retention& retention) {
  const std::string partial = partial_folder(root, step), final = root + "/" + checkpoint_name(step);
  TESSERA_REQUIRE(look_at(partial + "/" + index_file).exists(), "{} has no index", partial);
  sync_folder(partial);
  move_into_place(partial, final);
  sync_folder(root);
  point_latest(root, checkpoint_name(step));
  if (retention.best) point_best(root, best_step_of(CheckpointReader(final).meta().values));
  discard_checkpoint(root, step);  // after an exchange: the step's older save
  if (retention.newest > 0) prune(root, step, retention);
  if (!retention.best) drop_dangling_best(root);
}

void discard_checkpoint(const std::string& root, std::int64_t step) noexcept {
  std::error_code ignored;
  fs::remove_all(partial_folder(root, step), ignored);
}

namespace {

/// Makes root/LINK lead to root/NAME, at once.
void point(const std::string& root, const std::string& link_name, const std::string& name) {
  const std::string link = root + "/" + link_name, fresh = link + ".partial";
  if (look_at_link(link).kind == PathState::Kind::folder) settle_copy(root, link);
  ::unlink(fresh.c_str());  // left by a kill
  if (::symlink(name.c_str(), fresh.c_str()) != 0) fail_storage("make the link", fresh, errno);
  rename_path(fresh, link);
  sync_folder(root);
}

}  // namespace

void point_latest(const std::string& root, const std::string& name) { point(root, "latest", name); }

void point_best(const std::string& root, std::int64_t step) {
  const std::string name = step < 0 ? "" : checkpoint_name(step);
  if (step >= 0 && look_at(root + "/" + name).kind == PathState::Kind::folder) return point(root, "best", name);
  const std::string link = root + "/best";
  if (look_at_link(link).kind == PathState::Kind::other) ::unlink(link.c_str());
}

}  // namespace tessera::io
