// A shard file of a checkpoint, open for reading: every value that it gives was compared with its checksum.
#pragma once
#include <unordered_map>

#include "io/checkpoint/envelope.hpp"
#include "io/checkpoint/format.hpp"

namespace tessera::io {

inline constexpr std::string_view restore_advice = "Restore the file from a copy, or use an older checkpoint of the run.";

/// Where the data and checksums of all slices lie, ascending.
std::vector<Extent> data_extents(const ShardDirectory& d);

/// What is damaged or does not fit throws Error(checkpoint) with the file, the unit and its tensors, and what to do. Functions that are
/// const may be called from several threads at once. The layout must outlive it.
class ShardFile {
 public:
  /// Opens file `number` of the folder and verifies its directory. `layout_hash` is of the layout's text.
  ShardFile(const std::string& folder, const CheckpointLayout& layout, const Hash128& layout_hash, int number);

  int number() const { return number_; }
  const std::string& path() const { return file_.path(); }
  const PosixFile& file() const { return file_; }
  const Envelope& envelope() const { return envelope_; }
  const ShardDirectory& directory() const { return directory_; }
  /// Which of the directory's slices a shard has of a unit, for a group.
  std::size_t slice_of(int shard, std::size_t group, int unit) const;
  const SliceEntry& slice(std::size_t i) const { return directory_.slices[i]; }
  /// The checksums of a slice's blocks, read and verified when they are first asked for.
  const std::vector<Hash128>& table(std::size_t slice);
  /// Blocks [block, end) of a slice into `out`, each compared with `table`, which is the slice's.
  void read_run(std::size_t slice, const std::vector<Hash128>& table, std::int64_t block, std::int64_t end, float* out) const;
  /// The same by several threads.
  void read_blocks(std::size_t slice, std::int64_t block, std::int64_t count, float* out);
  /// Tells the kernel that blocks from `block` on are wanted soon, once for a stretch of them.
  void read_ahead(std::size_t slice, std::int64_t block);
  /// Of a slice: its group and unit.
  struct Place {
    const std::string& group;
    int unit = 0;
  };
  Place place_of(std::size_t slice) const;
  /// Compares the bytes that are neither data nor checksums with their checksum.
  void verify_structure() const;

 private:
  /// A shard's slices among the directory's: from `first` on.
  struct Member {
    std::size_t first = 0;
    std::vector<GroupSlice> held;
  };
  /// Elements [begin, end) of a slice's unit and the tensors that they touch, for messages.
  std::string describe(std::size_t slice, std::int64_t begin, std::int64_t end) const;

  const CheckpointLayout* layout_;
  int number_;
  PosixFile file_;
  Envelope envelope_;
  ShardDirectory directory_;
  std::unordered_map<int, Member> members_;  // by shard
  std::unordered_map<std::size_t, std::vector<Hash128>> tables_;
  std::int64_t ahead_until_ = 0;  // bytes of the file that the kernel was asked for
};

}  // namespace tessera::io
