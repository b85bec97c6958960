// Copies of a run's state in the memory of its nodes: what a rank would save of a step lies there as shard files of checkpoints, on its own
// node and on its keeper's, so that a start after a loss finds all of them among the nodes that are left. No index is written beside them;
// a start that has found enough makes one.
//
//   FOLDER/tessera-copies-DIGEST/           of a run
//     start-4f2a.../                        of one start of it: files of two make no state
//       rank-00003/step-00000012.partial/
//         shard-00003.h5, shard-00001.h5      what rank 3 has copied, and what it keeps of rank 1
//         state.json                          of what run and step they are
//       rank-00003/aside/shard-00003.h5       of an earlier step: room for a later one
//       node-00000/step-00000012/             what a later start has put together for the ranks of a node
//         checkpoint.h5, shard-00003.h5 ...
#pragma once
#include <optional>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace tessera::io {

/// Where the copies of a run lie on a node. `token` names the run, and nobody guesses it.
std::string state_copies_folder(const std::string& folder, const std::string& token);

/// The copies that one rank writes. What fails throws Error(storage).
class StateCopies {
 public:
  /// Makes the rank's folder in `run`, a state_copies_folder, for this user's eyes alone.
  StateCopies(const std::string& run, const std::string& start, int rank);

  /// Begins a step's: nothing of it is there yet.
  void begin(std::int64_t step) const;
  /// As write_shard, in the room of what was set aside.
  void write(std::int64_t step, const CheckpointLayout& layout, int shard, std::span<const ShardSlice> slices) const;
  /// Of what run and step the files are. Last of what the rank itself writes.
  void describe(const CheckpointMeta& meta, const CheckpointLayout& layout) const;
  /// Gives a file of step `from` to step `to` too, whose bytes are the same.
  void link(std::int64_t from, std::int64_t to, int shard) const;
  /// Nobody finds a step's copies any longer, and those after it are written into their room: memory that is given back and taken again
  /// costs as much as the copies.
  void set_aside(std::int64_t step) const noexcept;
  void remove(std::int64_t step) const noexcept;
  std::string shard_path(std::int64_t step, int shard) const;
  /// Where a shard lies that was set aside, if it was.
  std::string aside_path(int shard) const;

 private:
  std::string folder_;
};

/// A file that comes in pieces from another rank, under another name until it is whole: in the room of the file `over`, where there is one
/// that has no other name.
class ArrivingFile {
 public:
  ArrivingFile(std::string path, std::int64_t bytes, const std::string& over = "");
  void write(std::int64_t at, std::span<const std::byte> piece) { file_.write(at, piece.data(), piece.size()); }
  void stands();

 private:
  std::string path_;
  PosixFile file_;
};

/// A whole shard file that was found.
struct FoundShard {
  std::string start;
  std::int64_t step = 0;  ///< of the state that it is a part of
  int shard = 0;
  std::int64_t bytes = 0;
  Hash128 layout, hash;  ///< of the text of its checkpoint's layout; of its own directory
  std::string path;
};
/// What of a run's copies lies on this node, whole as far as heads and lengths tell: data are compared with their checksums when they are
/// read. What is cut or cannot be read is left out, and `faults` says why.
struct FoundCopies {
  std::vector<FoundShard> shards;
  std::vector<std::string> faults;
};
FoundCopies find_state_copies(const std::string& run);
/// What `describe` wrote of a step, where it stands on this node and is whole; else "".
std::string find_description(const std::string& run, const std::string& start, std::int64_t step);

/// The text of it.
std::string description_text(const CheckpointMeta& meta, const CheckpointLayout& layout);
/// Of what run and step copies are, and the layout of their files.
struct DescribedCopies {
  CheckpointMeta meta;
  CheckpointLayout layout;
};
/// Of such a text; `where` is for messages.
DescribedCopies parse_description(const std::string& text, const std::string& where);

/// Where copies are put together for the ranks of a node.
std::string put_together_folder(const std::string& run, const std::string& start, int node, std::int64_t step);
/// Makes that folder, from which a CheckpointReader reads once it has the files that it is asked for: an index, and one more name of each
/// of `shards`, which lie on this node. `hashes` are those of all files.
void put_together(const std::string& folder, const DescribedCopies& copies, std::span<const Hash128> hashes,
                  std::span<const FoundShard> shards);

/// A step's copies, of one start.
struct KeptCopies {
  std::string start;
  std::int64_t step = 0;
  bool newer_too = false;  ///< of that start, which others may be writing
};
/// Removes a run's copies on this node, of this user: all, or all but `kept`. What cannot be removed stays.
void remove_state_copies(const std::string& run, const std::optional<KeptCopies>& kept = {}) noexcept;

}  // namespace tessera::io
