// Where the copies of a run's state lie on its nodes, and of which start: what a later start looks for, and takes no others.
#pragma once
#include <optional>
#include <string>

#include "train/folder/run_folder.hpp"

namespace tessera {

/// RUN/neighbours.json.
struct CopiesRecord {
  std::string folder;              ///< checkpoint.neighbour_folder
  std::string token;               ///< of the run; nobody guesses it
  std::string start;               ///< whose copies are the newest
  std::string from = {};           ///< the start whose copies that one went on from; "": it has read a checkpoint, or begun anew
  std::int64_t from_step = 0;      ///< and of which step
  std::string run_folder() const;  ///< on each node
};

/// Rank 0 only. Nothing where there is none, or what stands there cannot be read, which is said.
std::optional<CopiesRecord> read_copies_record(const RunFolder& folder);
/// Rank 0 only: names this start, in place of the last.
void write_copies_record(const RunFolder& folder, const CopiesRecord& record);
/// Rank 0 only: no start looks for copies any more.
void remove_copies_record(const RunFolder& folder);
/// Letters that no other start has, and nobody guesses.
std::string draw_name();

}  // namespace tessera
