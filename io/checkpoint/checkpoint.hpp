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
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "base/box.hpp"
#include "base/check.hpp"
#include "io/files/page_buffer.hpp"
#include "io/files/posix_file.hpp"

namespace tessera::io {

inline constexpr std::int64_t hash_block = 262144;  // elements (1 MiB of fp32): what a checksum covers

/// A flat range of `elements`, cut into equal slices: of N holders the k-th has [k * elements/N, (k+1) * elements/N), rounded down.
struct CheckpointUnit {
  std::string name;
  std::int64_t elements = 0;
  std::vector<int> holders = {};  ///< the shards that have a slice each, in order of slices; empty: all shards
  std::vector<int> groups = {};   ///< numbers of those that have it, ascending; empty: all groups

  bool lies_in(int group) const { return groups.empty() || std::ranges::find(groups, group) != groups.end(); }
};
/// What of a tensor lies in one piece: a box of its natural shape, row-major, at [offset, offset + box.elements()) of a unit.
struct CheckpointPiece {
  int unit = 0;
  std::int64_t offset = 0;
  Box box;
};
/// Of the groups that its units lie in, which are the same for all of them. Others may have a tensor of this name and another shape.
struct CheckpointTensor {
  std::string name;
  Shape shape;                          ///< natural, whatever cut it
  std::vector<CheckpointPiece> pieces;  ///< every element of the tensor lies in exactly one

  CheckpointTensor(std::string name_, Shape shape_, std::vector<CheckpointPiece> pieces_)
      : name(std::move(name_)), shape(std::move(shape_)), pieces(std::move(pieces_)) {}
  /// Whole in one unit.
  CheckpointTensor(std::string name_, Shape shape_, int unit, std::int64_t offset)
      : name(std::move(name_)), shape(std::move(shape_)), pieces{{unit, offset, whole_box(shape)}} {}
  bool whole() const { return pieces.size() == 1 && pieces.front().box == whole_box(shape); }
};
struct CheckpointLayout {
  std::vector<CheckpointUnit> units;
  std::vector<CheckpointTensor> tensors;
  std::vector<std::string> groups;  // "master", "adam_m", "adam_v"
  int shards = 1;
  std::vector<int> files = {};  ///< the file that each shard lies in, numbered from 0 without a gap; empty: a file each

  bool lies_in(const CheckpointTensor& tensor, int group) const {
    return tensor.pieces.empty() || units[static_cast<std::size_t>(tensor.pieces.front().unit)].lies_in(group);
  }
  /// Of a unit's values in all groups that have it.
  std::int64_t bytes_of(const CheckpointUnit& unit) const {
    return unit.elements * 4 * (unit.groups.empty() ? std::ssize(groups) : std::ssize(unit.groups));
  }
  std::int64_t bytes() const;
};
/// The number of the files' format: 1 where all shards hold every unit and every tensor is whole in one, 4 where not all groups have all
/// units, else 3 where shards share files, else 2.
int checkpoint_format(const CheckpointLayout& layout);
inline constexpr int newest_checkpoint_format = 4;

/// The furthest step from which a run has gone back, and how often in a row without a checkpoint from beyond it.
struct Ways {
  std::int64_t reached = 0, times = 0;
  friend bool operator==(const Ways&, const Ways&) = default;
};

/// After so many steps a run has left out so many samples in all.
struct LeftOut {
  std::int64_t after = 0, samples = 0;
  friend bool operator==(const LeftOut&, const LeftOut&) = default;
};

/// How a run that goes back by itself came to a line.
struct WayBack {
  Ways spikes = {}, faults = {};       ///< from what its data or its keys made of a step; and from what memory or a processor made of it
  std::vector<LeftOut> left_out = {};  ///< what it leaves out on this line, in the order of steps
  friend bool operator==(const WayBack&, const WayBack&) = default;
};

/// What is saved from one beginning: new weights, another run's checkpoint, or one of the run's own that it went back to. Lines are
/// numbered in a run's folder from 1; 0 is the line of checkpoints from before lines were written.
struct CheckpointLine {
  std::int64_t number = 0;
  std::int64_t from_step = 0;  ///< where it began
  std::string from_digest;     ///< CheckpointReader::digest of the checkpoint that it began from; "" for new weights
  std::string from;            ///< that checkpoint's path, for people
  std::string why = {};        ///< what made the run go back there by itself; "" where somebody asked for it
  WayBack way = {};
  friend bool operator==(const CheckpointLine&, const CheckpointLine&) = default;
};
/// From the run's first line to the current one, never empty. Each began at a later step than the one before it.
using Lineage = std::vector<CheckpointLine>;

/// What a file of tokens held that a run was trained on. Files are the same where all but `path` and `bytes` are.
struct CheckpointData {
  std::string path;    ///< where it lay, for people
  std::string digest;  ///< XXH3-128 (hex) of its ids and its loss mask: TokenFacts::content
  std::int64_t tokens = 0, token_bytes = 0;
  std::int64_t bytes = 0;      ///< of the file
  double share = 1;            ///< of the run's samples
  std::string documents = {};  ///< digest of where its documents begin; "" where the run does not keep them apart

  bool holds_the_same(const CheckpointData& other) const {
    return digest == other.digest && tokens == other.tokens && token_bytes == other.token_bytes && documents == other.documents;
  }
};

/// What a run carries beside the state of its parameters: a loss scale, a count of updates, a history. /run/NAME of the index.
struct CheckpointValue {
  std::string name;
  bool integer = false;
  double number = 0;                ///< of an integer below 2^53
  std::vector<float> numbers = {};  ///< of a list, in place of `number`; zeros at its end are left out
  bool list = false;
  friend bool operator==(const CheckpointValue&, const CheckpointValue&) = default;
};

/// The value that names the step of the best evaluation up to the checkpoint.
inline constexpr std::string_view best_step_value = "best_step";
/// That step; -1: no evaluation came before.
std::int64_t best_step_of(const std::vector<CheckpointValue>& values);

struct CheckpointMeta {
  std::int64_t step = 0;           // steps finished
  std::int64_t sample_cursor = 0;  // samples consumed: the whole state of the data order
  std::uint64_t seed = 0;
  std::string deck;          // resolved deck, TOML
  std::string identity;      // deck_identity, hex
  std::string version;       // of Tessera
  std::string program = {};  // that wrote it: commit, digest, libraries; empty in older checkpoints
  Lineage lineage = Lineage(1);
  std::vector<CheckpointValue> values = {};  // none in older checkpoints, and in imported models
  std::vector<CheckpointData> data = {};     // in the order of data.train; empty in older checkpoints, and in imported models
};

/// Where a save finds the values of a slice.
class ShardSource {
 public:
  /// Gives values [at, at + out.size()); called from several threads at once.
  using Fetch = std::function<void(std::int64_t at, std::span<float> out)>;
  /// Memory of the host: what is aligned to 512 bytes goes to the disk without a copy.
  ShardSource(std::span<const float> values) : elements_(static_cast<std::int64_t>(values.size())), values_(values) {}
  /// Anywhere else, a GPU's memory or a file.
  ShardSource(std::int64_t elements, Fetch fetch) : elements_(elements), fetch_(std::move(fetch)) {}

  std::int64_t elements() const { return elements_; }
  /// Values [at, at + n): a view of them where they lie, else in `own`.
  std::span<const float> values(std::int64_t at, std::int64_t n, PageBuffer& own) const;

 private:
  std::int64_t elements_ = 0;
  std::span<const float> values_;
  Fetch fetch_;
};

/// One rank's slice of one unit that it holds, for one group; `data` has the values that the rule above gives it.
struct ShardSlice {
  int group = 0, unit = 0;
  ShardSource data;
};

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
class CheckpointReader {
 public:
  /// `path`: a step folder, `latest`, or its checkpoint.h5. Where `latest` moves on meanwhile, what it leads to then.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();
  CheckpointReader(CheckpointReader&&) noexcept;

  const CheckpointMeta& meta() const;
  const CheckpointLayout& layout() const;
  const std::string& folder() const;
  /// XXH3-128 (hex) of the index's directory: names this save, since the hashes of all files hang from it.
  std::string digest() const;
  /// Whether what stands at folder() is not this checkpoint any more.
  bool gone() const;
  /// Every shard is there, of the right length, and was saved together with the index. Reads their heads, not their data.
  void require_shards() const;
  /// Tensor by name, or null: of the first group that has one. And of a group.
  const CheckpointTensor* find(const std::string& tensor) const;
  const CheckpointTensor* find(const std::string& group, const std::string& tensor) const;
  /// Elements [begin, begin + out.size()) of the tensor in row-major order, whatever cut it. Reads whole hash blocks and verifies them;
  /// memory is bounded by a block for each piece of the tensor, 64 at most, and where pieces interleave 16 more.
  void read(const std::string& group, const CheckpointTensor& tensor, std::int64_t begin, std::span<float> out) const;
  /// Elements [begin, begin + out.size()) of a box of the tensor's natural shape, row-major in the box. Fast where the box was saved as one
  /// piece.
  void read_box(const std::string& group, const CheckpointTensor& tensor, const Box& box, std::span<float> out,
                std::int64_t begin = 0) const;
  /// A range of a unit, of all its slices together: the fast path where a run resumes with the same layout.
  void read_unit(const std::string& group, int unit, std::int64_t begin, std::span<float> out) const;
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
