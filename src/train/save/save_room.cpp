#include "train/save/save_room.hpp"

#include <fmt/format.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <numeric>

#include "base/log.hpp"
#include "io/checkpoint/format.hpp"
#include "io/checkpoint/survey.hpp"

namespace tessera {

SaveBytes save_bytes(const io::CheckpointLayout& layout, int ranks) {
  SaveBytes bytes;
  for (const auto& unit : layout.units)
    if (has_constants(layout, ranks) && !unit.holders.empty() && unit.holders.front() >= ranks)
      bytes.constant += layout.bytes_of(unit);
    else
      bytes.changing += layout.bytes_of(unit);
  return bytes;
}

namespace {

/// Of the saves of so many steps.
std::int64_t bytes_at_once(const Deck& deck, std::int64_t steps, std::int64_t own, const SaveBytes& bytes) {
  const std::int64_t keep = deck.checkpoint.keep;
  // At most each evaluation is the best so far; of those one stays beside what comes and goes.
  const std::int64_t bests = deck.checkpoint.keep_best ? steps / deck.evaluate.every : 0;
  const std::int64_t saves =
      bests + (deck.checkpoint.every > 0 ? ceil_div(steps, deck.checkpoint.every) : std::min<std::int64_t>(steps, 1));
  // Those that stay for ever are such steps that are saved, all but the newest of them beside those that come and go.
  const std::int64_t milestones =
      deck.checkpoint.keep_every > 0 && deck.checkpoint.every > 0 ? steps / std::lcm(deck.checkpoint.keep_every, deck.checkpoint.every) : 0;
  const std::int64_t at_once =
      keep == 0 ? saves : std::min(saves, std::max<std::int64_t>(keep + 1 - own, 1) + milestones + (bests > 0 ? 1 : 0));
  const std::int64_t weights = deck.checkpoint.weights_every > 0 ? steps / deck.checkpoint.weights_every : 0;
  const std::int64_t roots = (at_once > 0 ? 1 : 0) + (weights > 0 ? 1 : 0);
  return at_once * bytes.changing + weights * ceil_div(bytes.changing, 3) + roots * bytes.constant;  // of weights and two moments
}

/// Of the run's line, that can be read.
std::int64_t checkpoints_of(const io::Lineage& lineage, const std::string& root) {
  return std::ranges::count_if(io::survey_checkpoints(root).entries, [&](const io::CheckpointEntry& entry) {
    return entry.fault.empty() && entry.line() == lineage.back().number;
  });
}

/// None where the file system does not tell.
std::optional<std::int64_t> free_bytes(const std::string& folder) {
  struct statvfs s;
  if (statvfs(folder.c_str(), &s) != 0) return {};
  return static_cast<std::int64_t>(s.f_bavail) * static_cast<std::int64_t>(s.f_frsize);
}

}  // namespace

std::int64_t disk_bytes_needed(const Deck& deck, std::int64_t first_step, std::int64_t own, const SaveBytes& bytes) {
  return bytes_at_once(deck, std::max<std::int64_t>(deck.run.steps - first_step, 0), own, bytes);
}

std::int64_t next_saves_bytes(const Deck& deck, std::int64_t step, std::int64_t own, const SaveBytes& bytes) {
  const std::int64_t left = std::max<std::int64_t>(deck.run.steps - step, 0), interval = deck.checkpoint.every;
  // What no step changes is linked from now on.
  return bytes_at_once(deck, interval > 0 ? std::min(left, 2 * interval) : left, own, {.changing = bytes.changing});
}

std::optional<SaveRoom> lacking_room(const Engine& engine, int ranks, const Deck& deck, std::int64_t step, const std::string& root,
                                     const io::Lineage& lineage) {
  const SaveBytes bytes = save_bytes(engine.checkpoint_layout(), ranks);
  const std::optional<std::int64_t> free = free_bytes(root);
  if (!free || *free >= next_saves_bytes(deck, step, 0, bytes)) return {};  // they need no more than that
  const std::int64_t needed = next_saves_bytes(deck, step, checkpoints_of(lineage, root), bytes);
  if (*free >= needed) return {};
  return SaveRoom{.needed = needed, .free = *free};
}

void foresee_full_disk(const Engine& engine, int ranks, const Deck& deck, std::int64_t first_step, const std::string& root,
                       const io::Lineage& lineage) {
  const std::int64_t own = checkpoints_of(lineage, root);
  const SaveBytes bytes = save_bytes(engine.checkpoint_layout(), ranks);
  const std::int64_t needed = disk_bytes_needed(deck, first_step, own, bytes);
  const std::optional<std::int64_t> room = free_bytes(root);
  if (!room || *room >= needed) return;  // only a forecast: a disk that is full says so at the save
  warning(
      "{}: the saves of this run need {} at once ({} each; checkpoint.keep = {}, and one more while it is written), but the file system "
      "has {} free. Free some space, lower checkpoint.keep or choose another run.output_dir; a save that finds the disk full ends the run.",
      root, human_bytes(static_cast<double>(needed)), human_bytes(static_cast<double>(bytes.changing + bytes.constant)),
      deck.checkpoint.keep, human_bytes(static_cast<double>(*room)));
}

/// The node's disk must have room for what its ranks save at once.
void foresee_full_staging(const World& world, const Engine& engine, const std::string& folder) {
  const io::CheckpointLayout layout = engine.checkpoint_layout();
  std::int64_t mine = 0;
  for (const io::GroupSlice& slice : io::slices_of_groups(layout, world.rank())) mine += slice.of.end - slice.of.begin;
  const double needed = static_cast<double>(mine) * 4 * world.place().local_ranks;
  if (world.place().local_rank != 0) return;
  const std::optional<std::int64_t> room = free_bytes(folder);
  if (room && static_cast<double>(*room) < needed)
    warning(
        "{} (checkpoint.staging) on {}: a save needs about {} there, and {} are free. If it is full, saves go directly to the run's folder "
        "while the steps wait.",
        folder, world.place().host, human_bytes(needed), human_bytes(static_cast<double>(*room)));
}

}  // namespace tessera
