#include "train/folder/run_folder.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/log.hpp"
#include "base/own_files.hpp"
#include "base/regular_file.hpp"
#include "io/checkpoint/checkpoint.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"
#include "io/files/path_state.hpp"
#include "io/files/posix_file.hpp"
#include "train/folder/start_point.hpp"

namespace tessera {
namespace fs = std::filesystem;
namespace {

/// "" where it cannot be read.
std::string text_or_nothing(const std::string& path) {
  std::string text, ignored;
  return read_regular(path, io::small_file_bytes, text, ignored) ? text : "";
}

void move_aside(const std::string& path) {
  for (int n = 1;; ++n) {
    const std::string target = fmt::format("{}.old-{}", path, n);
    if (!io::look_at_link(target).nothing()) continue;
    io::rename_path(path, target);
    return info("run.overwrite: the earlier run was moved to {}", target);
  }
}

/// Whether the folder holds a run of another deck; `why` then says what differs. run.steps alone makes no other run: one may be made
/// longer.
bool holds_another_deck(const Deck& deck, const RunFolder& folder, std::string& why) {
  const io::PathState there_is = io::look_at(folder.deck());
  if (there_is.nothing()) return false;
  if (!there_is.exists()) {
    why = fmt::format("\n  {} cannot be read: {}", folder.deck(), there_is.reason);
    return true;
  }
  ParsedDeck there = parse_stored_deck(text_or_nothing(folder.deck()), folder.deck());
  if (!there.faults.empty()) {
    why = fmt::format("\n  {} cannot be understood", folder.deck());
    return true;
  }
  const std::int64_t steps = std::exchange(there.deck.run.steps, deck.run.steps);
  for (const std::string& difference : identity_differences(there.deck, deck)) why += "\n  " + difference;
  if (why.empty() && steps != deck.run.steps)
    info("run.steps was {} in {} and is {} now; the learning rate follows the new number", steps, folder.path, deck.run.steps);
  return !why.empty();
}

/// Refuses a folder that cannot be written, or be made. Makes nothing.
void require_writable(const std::string& path) {
  fs::path at = fs::absolute(path).lexically_normal();
  io::PathState there = io::look_at(at.string());
  for (; at.has_relative_path() && there.nothing(); there = io::look_at(at.string())) at = at.parent_path();
  if (there.unknown())
    fail(ExitCode::environment, "{}: cannot read it: {}. Fix the path or the file system, or choose another run.output_dir.", at.string(),
         there.reason);
  if (there.kind != io::PathState::Kind::folder)
    fail(ExitCode::environment, "cannot make {}: {} is not a folder. Choose another run.output_dir.", path, at.string());
  if (access(at.c_str(), W_OK | X_OK) != 0)
    fail(ExitCode::environment, "no permission to write in {}: {}. Choose a run.output_dir that you may write to.", at.string(),
         std::strerror(errno));
}

/// The lock of a folder that nobody else may hold.
RunLock held_now(const RunFolder& folder) {
  RunLock lock(folder.path);
  lock.wait(0, 0);
  return lock;
}

/// The same where an earlier run was moved away, which another start may have seen first.
RunLock held_anew(const RunFolder& folder) {
  RunLock lock = held_now(folder);
  if (io::look_at(folder.deck()).exists())
    fail(ExitCode::environment, "another run has started in {} while an earlier one was moved aside. Choose another run.output_dir.",
         folder.path);
  return lock;
}

void make_folders(const RunFolder& folder) {
  std::error_code error;
  fs::create_directories(folder.checkpoints(), error);
  if (error) io::fail_storage("make the folder", folder.checkpoints(), error.value());
}

void write_at_once(const std::string& path, const std::string& text) {
  io::AtomicFile out(path);
  out.file().write(0, text.data(), text.size());
  out.commit();
}

/// Lets `latest` lead to the run's own checkpoint that it goes on from: where it has gone back, what a later start with run.resume = auto
/// takes; where a copy of the folder made `latest` a folder, a link again.
void point_to_start(const std::string& checkpoints, const std::string& checkpoint) {
  const fs::path path = fs::canonical(checkpoint);
  if (path.parent_path() != fs::canonical(checkpoints)) return;
  if (path.filename() == "latest")
    io::point_latest(checkpoints, io::checkpoint_name(io::CheckpointReader(checkpoint).meta().step));
  else if (io::step_of_name(path.filename().string()))
    io::point_latest(checkpoints, path.filename().string());
  if (!io::look_at_link(checkpoints + "/best").nothing())
    io::point_best(checkpoints, io::best_step_of(io::CheckpointReader(checkpoint).meta().values));
}

/// Whether run.resume = never would mix a new run with an earlier one: what cannot be read is taken for a checkpoint.
bool holds_checkpoints(const RunFolder& folder) {
  const io::CheckpointSurvey survey = io::survey_checkpoints(folder.checkpoints());
  return !survey.fault.empty() || !survey.entries.empty() || survey.latest || !survey.latest_fault.empty();
}

}  // namespace

StartPoint reach_run_folder(const Deck& deck) {
  StartPoint start{.folder = {deck.run.output_dir}};
  std::string& path = start.folder.path;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();  // NAME/.old-1 would lie inside what is moved
  require_writable(path);
  require_writable(start.folder.checkpoints());
  start.lock = RunLock(path);
  return start;
}

void begin_anew(StartPoint& start) {
  start.move_aside = true, start.goes_back = false;
  start.checkpoint.clear(), start.candidates.clear();
  require_writable(fs::absolute(start.folder.path).lexically_normal().parent_path().string());
}

void examine_run_folder(const Deck& deck, StartPoint& start) {
  TESSERA_REQUIRE(start.lock.held(), "the contents of a folder are used without its lock");
  const RunFolder& folder = start.folder;
  std::string why;
  if (holds_another_deck(deck, folder, why)) {
    if (!deck.run.overwrite)
      fail(ExitCode::usage,
           "{} holds a run of another deck:{}\nChoose another run.output_dir, restore these keys, or set run.overwrite=true (the earlier "
           "run is kept as {}.old-N).",
           folder.path, why, folder.path);
    start.move_aside = true;
  } else if (deck.run.resume == "never" && holds_checkpoints(folder)) {
    if (!deck.run.overwrite)
      fail(ExitCode::usage,
           "run.resume = \"never\", but {} holds checkpoints that would mix with those of a new run. Set run.overwrite=true to move them "
           "aside, or choose another run.output_dir.",
           folder.path);
    start.move_aside = true;
  }
  if (start.move_aside) require_writable(fs::absolute(folder.path).lexically_normal().parent_path().string());
  const bool named = deck.run.resume != "auto" && deck.run.resume != "newest-good" && deck.run.resume != "never";
  if (start.move_aside) {
    if (named) start.checkpoint = deck.run.resume;
  } else if (deck.run.resume != "never") {
    Origin origin = find_origin(deck.run.resume, folder.checkpoints());
    start.checkpoint = std::move(origin.checkpoint), start.candidates = std::move(origin.candidates), start.goes_back = origin.goes_back;
  }
  if (!start.checkpoint.empty()) io::CheckpointReader check(start.checkpoint);  // refuses here, before memory and time are spent
}

bool is_of_folder(const StartPoint& start) {
  std::error_code ignored;  // a folder that cannot be looked at has been refused
  const fs::path step = fs::weakly_canonical(start.checkpoint, ignored);
  return !start.move_aside && step.parent_path() == fs::weakly_canonical(start.folder.checkpoints(), ignored);
}

RunClaim::RunClaim(const Deck& deck, std::string plan, RunFolder folder, io::Lineage lineage, RunLock lock)
    : folder_(std::move(folder)), deck_(print_deck(deck)), plan_(std::move(plan)), lineage_(std::move(lineage)), lock_(std::move(lock)) {
  lock_.keep();
}

void RunClaim::write() const {
  // At once or not at all: a deck.toml that a kill cut short would look like the run of another deck.
  write_at_once(folder_.deck(), deck_);
  if (!plan_.empty()) write_at_once(folder_.plan(), plan_);
  write_at_once(line_file(folder_.checkpoints()), io::lineage_text(lineage_) + "\n");
}

void RunClaim::go_back(const std::string& checkpoint, const std::string& why, const io::WayBack& way) {
  renew();
  lineage_ = lineage_from(checkpoint, true, folder_.checkpoints());
  lineage_.back().why = why, lineage_.back().way = way;
  if (!checkpoint.empty())
    point_to_start(folder_.checkpoints(), checkpoint);
  else
    io::point_best(folder_.checkpoints(), -1);
  write();
}

void RunClaim::renew() {
  if (lock_.stands()) return;
  const bool moved = io::look_at(folder_.path).nothing();
  lock_ = held_now(folder_);
  lock_.keep();
  make_folders(folder_);
  write();
  if (moved)
    warning(
        "{} was moved or removed while this run writes in it. The run created it again and saves there. Earlier checkpoints are where the "
        "folder was moved to, and a start before the next save would not find them.",
        folder_.path);
  else
    warning("{} was removed or replaced while this run writes in its folder: the run created it again.", folder_.lock());
}

std::string last_staging(const RunFolder& folder) {
  if (io::look_at(folder.deck()).kind != io::PathState::Kind::file) return "";
  const ParsedDeck last = parse_stored_deck(text_or_nothing(folder.deck()), folder.deck());
  return last.faults.empty() ? last.deck.checkpoint.staging : "";
}

RunClaim claim_run_folder(const Deck& deck, StartPoint& start, std::string plan) {
  const RunFolder& folder = start.folder;
  io::Lineage lineage =
      start.move_aside ? first_lineage(start.checkpoint) : lineage_from(start.checkpoint, start.goes_back, folder.checkpoints());
  if (start.move_aside) start.lock.keep(), move_aside(folder.path), start.lock = held_anew(folder);
  make_folders(folder);
  RunClaim claim(deck, std::move(plan), folder, std::move(lineage), std::move(start.lock));
  // The next save would do this too, but a run killed after its last one has no next save.
  io::remove_unfinished(folder.checkpoints());
  if (io::look_at(folder.weights()).exists()) io::remove_unfinished(folder.weights());
  // Before the line is recorded: killed in between, the same command goes back once more.
  if (!start.checkpoint.empty() && !start.move_aside) point_to_start(folder.checkpoints(), start.checkpoint);
  claim.write();
  return claim;
}

}  // namespace tessera
