// The room on disks that the saves of a run will need.
#pragma once
#include <optional>
#include <string>

#include "topology/world.hpp"
#include "train/engine/engine.hpp"

namespace tessera {

/// Of all shards together, in bytes of values.
/// What a save of so many ranks writes each time, and what it writes once a start, since no step changes it. Moments of the latter are
/// holes of the files.
struct SaveBytes {
  std::int64_t changing = 0, constant = 0;
};
SaveBytes save_bytes(const io::CheckpointLayout& layout, int ranks);
/// What the saves to come need at once of the disk, when `own` checkpoints of the run's line stand there already: checkpoint.keep + 1,
/// since the oldest goes only when the newest is whole, and what is saved of weights alone.
std::int64_t disk_bytes_needed(const Deck& deck, std::int64_t first_step, std::int64_t own, const SaveBytes& bytes);
/// The same of the saves of the next two intervals after `step`, of which one stands now.
std::int64_t next_saves_bytes(const Deck& deck, std::int64_t step, std::int64_t own, const SaveBytes& bytes);
/// Rank 0 of so many, after a save: where the folder's file system has less room than the next saves need, both.
struct SaveRoom {
  std::int64_t needed = 0, free = 0;
};
std::optional<SaveRoom> lacking_room(const Engine& engine, int ranks, const Deck& deck, std::int64_t step, const std::string& root,
                                     const io::Lineage& lineage);
/// Rank 0 of so many: warns where the folder's file system has less room than that.
void foresee_full_disk(const Engine& engine, int ranks, const Deck& deck, std::int64_t first_step, const std::string& root,
                       const io::Lineage& lineage);
/// Warns where the node's disk has no room for what its ranks save at once.
void foresee_full_staging(const World& world, const Engine& engine, const std::string& folder);

}  // namespace tessera
