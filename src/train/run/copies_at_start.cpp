#include "train/run/copies_at_start.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include "base/log.hpp"
#include "deck/ramp.hpp"
#include "io/files/path_state.hpp"
#include "train/data/data_identity.hpp"
#include "train/folder/start_point.hpp"
#include "train/run/plans.hpp"

namespace tessera {

CopiesAtStart::CopiesAtStart(const World& world, const Deck& deck, Engine& engine, const StartPoint& start)
    : world_(world), deck_(deck), engine_(engine) {
  CopiesRecord last;
  start_together(world_, [&] {
    if (world_.rank() == 0 && !start.move_aside) last = read_copies_record(start.folder).value_or(CopiesRecord{});
  });
  for (std::string* text : {&last.folder, &last.token, &last.start, &last.from}) *text = world_.broadcast_text(*text);
  last.from_step = world_.sum(last.from_step);  // the others have 0
  if (!last.token.empty()) last_ = last;
  if (deck_.checkpoint.neighbour_every == 0) return;
  neighbours_.emplace(world_);
  start_together(world_, [&] {
    if (!neighbours_->on_other_nodes() && !deck_.checkpoint.allow_same_node)
      fail(ExitCode::environment,
           "checkpoint.neighbour_every: with the ranks {}, some would keep their replicas on the node that they could be lost with. Use "
           "more nodes, of which none has more than half of all ranks, or set checkpoint.neighbour_every=0. "
           "checkpoint.allow_same_node=true is for trials on one machine.",
           world_.map_of_ranks());
    require_room();
  });
  record_.folder = deck_.checkpoint.neighbour_folder;
  record_.token = world_.broadcast_text(last_ ? last_->token : draw_name());
  record_.start = world_.broadcast_text(draw_name());
}

void CopiesAtStart::require_room() const {
  const std::string& folder = deck_.checkpoint.neighbour_folder;
  if (const io::PathState there = io::look_at(folder); there.kind != io::PathState::Kind::folder)
    fail(ExitCode::environment, "{} (checkpoint.neighbour_folder) on {}: {}. Name a folder in the memory of each node, such as /dev/shm.",
         folder, world_.place().host,
         there.nothing()   ? "there is no such folder"
         : there.unknown() ? there.reason
                           : "it is not a folder");
  struct statvfs room;
  if (world_.place().local_rank != 0 || ::statvfs(folder.c_str(), &room) != 0) return;
  std::int64_t left = 0;  // by the last start: it goes as this one's come
  if (last_)
    for (const io::FoundShard& shard : io::find_state_copies(last_->run_folder()).shards) left += shard.bytes;
  const std::int64_t free = static_cast<std::int64_t>(room.f_bavail) * static_cast<std::int64_t>(room.f_frsize) + left;
  const std::int64_t needed = engine_.room()[static_cast<std::size_t>(Tier::copies)] * world_.place().local_ranks;
  if (free < needed)
    fail(ExitCode::memory,
         "{} (checkpoint.neighbour_folder) on {} has {} free, but the replicas of the node's {} ranks need {}. Enlarge it (as root: mount "
         "-o remount,size=SIZE {}), use more nodes, or set checkpoint.neighbour_every=0.",
         folder, world_.place().host, human_bytes(static_cast<double>(free)), world_.place().local_ranks,
         human_bytes(static_cast<double>(needed)), folder);
}

std::optional<std::int64_t> CopiesAtStart::restore(const StartPoint& start, const std::vector<io::CheckpointData>& data,
                                                   RunPosition& position) {
  const bool goes_on = !start.goes_back && !start.move_aside && (deck_.run.resume == "auto" || deck_.run.resume == "newest-good");
  if (!neighbours_ || !last_ || !goes_on) return {};
  position.turn_to("the search for copies of the state in the memory of nodes");
  std::int64_t saved = 0;
  io::Lineage lineage;
  start_together(world_, [&] {
    if (world_.rank() != 0) return;
    if (!start.checkpoint.empty()) saved = io::CheckpointReader(start.checkpoint).meta().step;
    lineage = lineage_from(start.checkpoint, false, start.folder.checkpoints());
  });
  saved = world_.sum(saved);  // the others have 0
  const auto fits = [&](const io::CheckpointMeta& meta) -> std::string {
    if (meta.lineage != lineage) return "they belong to a branch of the run that a rollback abandoned";
    if (!data_differences(meta.data, data).empty()) return "they belong to a run on other data";
    // A spike must take the run back to where it would have taken it without the start between.
    const std::int64_t every = deck_.checkpoint.every, due = every > 0 ? meta.step / every * every : 0;
    if (deck_.guards.spike == SpikeMode::rollback && due > saved && due < meta.step)
      return fmt::format("guards.spike = \"rollback\" would return to the checkpoint of step {}, which is missing", due);
    return "";
  };
  const std::optional<NeighbourState> found = NeighbourState::find(world_, *last_, saved, fits);
  if (!found) return {};
  const std::int64_t step = found->meta().step;
  try {
    engine_.begin_in(phase_after(deck_, step));
    position.turn_to("the loading of copies of the state");
    found->load(world_, *neighbours_, engine_);
  } catch (const AgreedError& error) {
    if (error.code == ExitCode::lost || error.code == ExitCode::interrupted) throw;
    if (world_.rank() == 0)
      warning("{} The in-memory replicas of step {} are not used; the run resumes from {}.", error.what(), step,
              start.checkpoint.empty() ? "its first step" : start.checkpoint);
    return {};
  }
  kept_ = found->kept();
  info("resumed from in-memory replicas at step {} of {}; no checkpoint was read ({})", step, deck_.run.steps,
       saved == 0 ? "there is none" : fmt::format("the newest is of step {}", saved));
  return step;
}

void CopiesAtStart::claim(const StartPoint& start) {
  claimed_ = start.folder;
  world_.together([&] {
    if (world_.rank() != 0 || !neighbours_) return;
    CopiesRecord record = record_;
    if (kept_) record.from = kept_->start, record.from_step = kept_->step;
    write_copies_record(start.folder, record);
  });
  if (!last_ || world_.place().local_rank != 0) return;
  const bool same = neighbours_ && last_->run_folder() == record_.run_folder();
  io::remove_state_copies(last_->run_folder(), same ? kept_ : std::nullopt);
}

void CopiesAtStart::remove() const {
  world_.barrier();
  if (neighbours_ && world_.place().local_rank == 0) io::remove_state_copies(record_.run_folder());
}

void CopiesAtStart::abandon() const {
  if (!neighbours_ || !claimed_) return;
  io::remove_state_copies(record_.run_folder());
  if (world_.rank() == 0) remove_copies_record(*claimed_);
}

}  // namespace tessera
