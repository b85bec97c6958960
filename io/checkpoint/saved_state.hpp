// The state of a run as a save takes it and a resume reads it: units, tensors, values. Where it lies is for others to know: checkpoint.hpp
// has the files.
#pragma once
#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/box.hpp"
#include "io/files/page_buffer.hpp"

namespace tessera::io {

inline constexpr std::int64_t hash_block = 262144;  // elements (1 MiB of fp32): what a checksum covers, and what is read at a time

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

/// Saved state that can be read. A reader throws Error(checkpoint) where its values are not those that were saved.
class SavedState {
 public:
  virtual ~SavedState() = default;

  /// For messages.
  virtual const std::string& name() const = 0;
  virtual const CheckpointMeta& meta() const = 0;
  virtual const CheckpointLayout& layout() const = 0;
  /// Tensor by name, or null: of the first group that has one. And of a group.
  virtual const CheckpointTensor* find(const std::string& tensor) const = 0;
  virtual const CheckpointTensor* find(const std::string& group, const std::string& tensor) const = 0;
  /// Elements [begin, begin + out.size()) of the tensor in row-major order.
  virtual void read(const std::string& group, const CheckpointTensor& tensor, std::int64_t begin, std::span<float> out) const = 0;
  /// Elements [begin, begin + out.size()) of a box of the tensor's natural shape, row-major in the box. Fast where the box was saved as one
  /// piece.
  virtual void read_box(const std::string& group, const CheckpointTensor& tensor, const Box& box, std::span<float> out,
                        std::int64_t begin = 0) const = 0;
  /// A range of a unit, of all its slices together: the fast path where a run resumes with the same layout.
  virtual void read_unit(const std::string& group, int unit, std::int64_t begin, std::span<float> out) const = 0;
};

}  // namespace tessera::io
