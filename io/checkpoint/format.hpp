// The directories inside checkpoint files, and names. docs/checkpoint_format.md describes them for other programs.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/hash.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace tessera::io {

inline constexpr const char* index_file = "checkpoint.h5";
/// After "step-N": an older save of the step, alive only while a newer one takes its place.
inline constexpr std::string_view replaced_ending = ".replaced";
/// "shard-00003.h5"
std::string shard_file(int file);
int file_count(const CheckpointLayout& layout);
int file_of(const CheckpointLayout& layout, int shard);
/// In ascending order.
std::vector<int> shards_in(const CheckpointLayout& layout, int file);
/// The group of a file's HDF5 tree that a shard's groups lie in: "" where it has the file for itself, else "/shard-3".
std::string place_of(const CheckpointLayout& layout, int shard);
/// root/step-00001000.partial
std::string partial_folder(const std::string& root, std::int64_t step);
/// Of `holders` slices the k-th is [slice_begin(elements, holders, k), slice_begin(elements, holders, k + 1)).
std::int64_t slice_begin(std::int64_t elements, int holders, int k);
/// How many shards hold a slice of the unit, and which one holds the k-th.
int holder_count(const CheckpointLayout& layout, const CheckpointUnit& unit);
int holder_of(const CheckpointUnit& unit, int k);

/// Elements [begin, end) of a unit, which lie in one shard.
struct UnitSlice {
  int unit = 0, shard = 0;
  std::int64_t begin = 0, end = 0;
};
/// One slice of each unit that the shard holds, in order of units.
std::vector<UnitSlice> slices_of(const CheckpointLayout& layout, int shard);
/// All that the shard holds: group by group, its slices of the units that lie there.
struct GroupSlice {
  int group = 0;
  UnitSlice of;
};
std::vector<GroupSlice> slices_of_groups(const CheckpointLayout& layout, int shard);
/// Elements [begin, end) of a unit that belong to a piece and lie in one slice.
struct PiecePart {
  UnitSlice slice;
  std::int64_t begin = 0, end = 0;
};
std::vector<PiecePart> parts_of(const CheckpointLayout& layout, const CheckpointPiece& piece);

/// Where one slice lies in a shard file.
struct SliceEntry {
  std::int64_t begin = 0, end = 0;          // of the unit's flat range
  std::int64_t data_at = 0, hashes_at = 0;  // bytes in the file
  Hash128 digest;                           // of the slice's table of block hashes
  std::int64_t elements() const { return end - begin; }
  std::int64_t blocks() const { return ceil_div(elements(), hash_block); }
};
/// What lies in one shard file.
struct ShardDirectory {
  std::int64_t step = 0;
  std::vector<int> shards;         // one, unless shards share files
  Hash128 layout;                  // of layout_text: which checkpoint layout it belongs to
  Hash128 structure;               // of the HDF5 metadata: all bytes after the user block that are no data
  std::vector<SliceEntry> slices;  // for each shard slices_of_groups(layout, shard)
};
struct IndexDirectory {
  CheckpointMeta meta;
  CheckpointLayout layout;
  Hash128 structure;
  std::vector<Hash128> files;  // hash of each shard file's directory: ties the files of one save together
};

/// The layout as JSON, the same text for the same layout.
std::string layout_text(const CheckpointLayout& layout);
/// A lineage as JSON, as the index and a run's line.json hold it.
std::string lineage_text(const Lineage& lineage);
/// The files of a run's data as JSON, as the index holds them.
std::string data_text(const std::vector<CheckpointData>& data);
/// Values of a run as JSON.
std::string values_text(const std::vector<CheckpointValue>& values);
Lineage parse_lineage(const std::string& text, const std::string& file);
/// A defect of the caller (a tensor outside its unit or not covered by its pieces, a name twice) is an internal error.
void require_layout(const CheckpointLayout& layout);

std::string write_directory(const ShardDirectory& d, const CheckpointLayout& layout);
std::string write_directory(const IndexDirectory& d);
/// `file` is for messages. The text was verified by its checksum; what still does not fit is Error(checkpoint).
ShardDirectory parse_shard_directory(const std::string& text, const std::string& file);
IndexDirectory parse_index_directory(const std::string& text, const std::string& file);

}  // namespace tessera::io
