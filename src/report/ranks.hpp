// What there is around the ranks of a launch: what all have once, and what differs between them.
#pragma once
#include <string>
#include <vector>

#include "report/surroundings.hpp"

namespace tessera {

/// As one text, for another rank.
std::string pack(const Surroundings& around);
Surroundings unpack(const std::string& text);

/// Of all ranks, and the node of each.
struct RanksAround {
  std::vector<Surroundings> ranks = {};
  std::vector<int> nodes = {};
  std::string map = {};  ///< "0-3 on n1, 4-7 on n2"
};

std::string print_ranks(const RanksAround& around);
/// One object: "ranks"; "same", rooms with their facts; "differs", each with its values and whose they are; "lacking", with ranks.
std::string ranks_json(const RanksAround& around);

}  // namespace tessera
