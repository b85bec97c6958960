// Checkpoints that any HDF5 tool opens whole.
//
//   checkpoints/step-00001000/checkpoint.h5   the index: virtual datasets /master, /adam_m, /adam_v, one per tensor in its natural shape;
//                                             deck, step, cursor
//   checkpoints/step-00001000/shard-00000.h5  one per rank: /GROUP/UNIT is that rank's slice of the flat range of a unit that it holds,
//                                             1-D fp32, and /GROUP/UNIT.xxh3 the XXH3-128 of each block of `hash_block` elements;
//                                             or one for several ranks, with /shard-N/GROUP/UNIT of each
//   checkpoints/latest -> step-00001000       moved only when every file of the step is on disk
//
// This file knows nothing of models or ranks' layout beyond the numbers in CheckpointLayout.
#pragma once
#include <memory>
#include <set>

#include "base/check.hpp"
#include "io/checkpoint/saved_state.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {

/// The number of the files' format: 1 where all shards hold every unit and every tensor is whole in one, 4 where not all groups have all
/// units, else 3 where shards share files, else 2.
int checkpoint_format(const CheckpointLayout& layout);
inline constexpr int newest_checkpoint_format = 4;

/// Which checkpoints a save leaves on disk.
struct Retention {
  std::int64_t newest = 0;  ///< so many of the run's line; 0: all
  std::int64_t every = 0;   ///< and for ever those of steps that it divides, on the way to the one just saved; 0: none
  bool best = false;        ///< and what those that stay name as their best (best_step_value); `best` leads to that of the one just saved
  std::int64_t due = 0;     ///< those of other steps than it divides do not count among the newest, and go with the next; 0: all count
};

/// "step-00001000"
std::string checkpoint_name(std::int64_t step);

/// Saving, in this order, by every rank of the run:
///   rank 0:    begin_checkpoint(root, step)           makes root/step-N.partial, empty (an older .partial is removed)
///   every rank after a barrier: write_shard(...)      writes, syncs and closes its shard file, or its part of one
///   where shards share files, a rank for each file after a barrier: seal_file(...)
///   rank 0 after a barrier: write_index(...), commit_checkpoint(root, step, keep)
/// A file whose shards no step changes need not be written again: `link_file`, before any rank writes, makes it one more name of the file
/// that the whole checkpoint in the folder `from` has, of the same layout, and write_index is told of it.
/// A write that fails throws Error(storage) naming the file and the system's reason (disk full says so); the previous checkpoint is
/// untouched.
void begin_checkpoint(const std::string& root, std::int64_t step);
void write_shard(const std::string& root, std::int64_t step, const CheckpointLayout&, int shard, std::span<const ShardSlice> slices,
                 Readers readers = Readers::umask);
/// As write_shard, for the user's eyes alone, of a shard with a file of its own, into the room of the file `over` where that is of the same
/// shard and layout and has no other name. Until it is whole it has another name than a shard's.
void write_shard_over(const std::string& over, const std::string& root, std::int64_t step, const CheckpointLayout&, int shard,
                      std::span<const ShardSlice> slices);
void seal_file(const std::string& root, std::int64_t step, const CheckpointLayout&, int file);
/// False, and no name is left, where that file is not whole or the file system has no such names.
bool link_file(const std::string& from, const std::string& root, std::int64_t step, const CheckpointLayout&, int file);
/// After link_file, where the file is to be written after all: nothing is written into what another checkpoint has.
void unlink_file(const std::string& root, std::int64_t step, int file);
/// `linked`: files that are of an earlier step.
void write_index(const std::string& root, const CheckpointLayout&, const CheckpointMeta&, std::span<const int> linked = {});
/// Renames .partial, syncs the folder, moves `latest` (a relative symbolic link, replaced atomically), then removes what `retention` leaves
/// no room for. The newest whole ones of the saved checkpoint's line stay. When there are that many, older ones of the line go, and those
/// of other lines that it has overtaken: their step is not above the one just saved. Damaged ones do not count, and those whose index
/// cannot be read are left alone.
void commit_checkpoint(const std::string& root, std::int64_t step, const Retention& retention);
/// After a failed save: removes root/step-N.partial, ignoring errors.
void discard_checkpoint(const std::string& root, std::int64_t step) noexcept;

/// Removes every step-*.partial under root: what a save or a removal left that was killed or failed. For the run that owns the folder.
void remove_unfinished(const std::string& root);

/// Makes `latest` lead to root/NAME, a step folder. Where a copy of the run (cp -rL, scp -r) has made `latest` a folder, that folder first
/// takes its place among the steps, or is removed where its step stands there whole.
void point_latest(const std::string& root, const std::string& name);
/// Makes `best` lead to the checkpoint of a step; where there is none, there is no `best`.
void point_best(const std::string& root, std::int64_t step);

/// A run may save faster than its checkpoints can be read.
constexpr int most_checkpoints_tried = 16;

/// Error(checkpoint): the checkpoint was removed or replaced while it was read, as a run does that saves beside (checkpoint.keep).
class CheckpointGone : public Error {
 public:
  using Error::Error;
};

/// An open checkpoint. Opens shard files as needed (a bounded number at a time), one thread at a time per reader; every value that it
/// returns was verified against its checksum. A shard that is missing, truncated or altered throws Error(checkpoint) with the file, tensor
/// or unit, and what to do; where the checkpoint as a whole is not there any more, CheckpointGone.
class CheckpointReader : public SavedState {
 public:
  /// `path`: a step folder, `latest`, or its checkpoint.h5. Where `latest` moves on meanwhile, what it leads to then.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader() override;
  CheckpointReader(CheckpointReader&&) noexcept;

  const CheckpointMeta& meta() const override;
  const CheckpointLayout& layout() const override;
  const std::string& folder() const;
  const std::string& name() const override { return folder(); }
  /// XXH3-128 (hex) of the index's directory: names this save, since the hashes of all files hang from it.
  std::string digest() const;
  /// Whether what stands at folder() is not this checkpoint any more.
  bool gone() const;
  /// Every shard is there, of the right length, and was saved together with the index. Reads their heads, not their data.
  void require_shards() const;
  const CheckpointTensor* find(const std::string& tensor) const override;
  const CheckpointTensor* find(const std::string& group, const std::string& tensor) const override;
  /// Whatever cut it. Reads whole hash blocks and verifies them; memory is bounded by a block for each piece of the tensor, 64 at most, and
  /// where pieces interleave 16 more.
  void read(const std::string& group, const CheckpointTensor& tensor, std::int64_t begin, std::span<float> out) const override;
  void read_box(const std::string& group, const CheckpointTensor& tensor, const Box& box, std::span<float> out,
                std::int64_t begin = 0) const override;
  void read_unit(const std::string& group, int unit, std::int64_t begin, std::span<float> out) const override;
  /// From now on no shard is opened and values are zeros: `files` gets the number of each file that would be read.
  void only_note(std::set<int>& files);
  /// Reads everything and compares all checksums. `progress(done_bytes, total_bytes)`. Ranks share the work: each takes its `part` of
  /// `parts`.
  void verify(const std::function<void(std::int64_t, std::int64_t)>& progress, int part = 0, int parts = 1) const;
  /// XXH3-128 (hex) of a whole tensor's fp32 values in natural order: does not depend on how it was sharded.
  std::string tensor_hash(const std::string& group, const CheckpointTensor& tensor) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Whether another checkpoint can be taken for one that is gone: `path`, `latest` as a rule, leads to one. Says so.
bool goes_on_with_next(const CheckpointGone& gone, const std::string& path);

/// Calls `read` with a reader of `path`; again where the checkpoint goes under it and `path` leads to the next one.
template <class Read>
auto read_checkpoint(const std::string& path, Read&& read) {
  for (int tries = 1;; ++tries) {
    const CheckpointReader reader(path);
    try {
      return read(reader);
    } catch (const CheckpointGone& gone) {
      if (tries == most_checkpoints_tried || !goes_on_with_next(gone, path)) throw;
    }
  }
}

}  // namespace tessera::io
