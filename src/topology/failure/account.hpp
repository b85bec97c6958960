// Whom a run waits for, in words.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "topology/failure/whereabouts.hpp"

namespace tessera {

/// A rank as the others know it when they ask.
struct RankNote {
  int rank = 0;
  bool answered = false;  ///< to this question; else `note` is `age` seconds old
  bool ended = false;     ///< it has left the run
  double age = 0;
  Note note;
  int behind = -1;  ///< the rank by which this one is heard, where that one does not answer either
};

std::string print_notes(std::span<const RankNote> notes);
std::vector<RankNote> parse_notes(std::string_view text);

/// "ranks 0-3 on n1 and 4, 6 on n2", hosts by rank. Ranks rise.
std::string name_ranks(std::span<const int> ranks, std::span<const std::string> hosts);

/// Who waits in the collective `wait`, and for whom: every rank that is not in it, with its host and what it does.
std::string explain_wait(std::span<const RankNote> notes, std::span<const std::string> hosts, const std::string& wait);

}  // namespace tessera
