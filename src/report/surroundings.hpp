// What there is around a run: versions, cores, memory, limits, devices, disks; and what lacks for which feature.
#pragma once
#include <string>
#include <vector>

namespace tessera {

struct Fact {
  std::string room, name, value;  ///< "limits", "locked memory", "8.00 MiB"
  bool passing = false;           ///< it is another the next moment: of the ranks of a node the first one's counts
};
struct Lack {
  std::string feature, why, remedy;
  friend bool operator==(const Lack&, const Lack&) = default;
};
struct Surroundings {
  std::vector<Fact> facts;  ///< room by room
  std::vector<Lack> lacking;
};

/// "AMD EPYC 9R45", as the system says it.
std::string processor_name();

/// Of this node, and of `folders` as places for spilled bytes: a small file is tried in each. Starts neither MPI nor kernels.
Surroundings look_around(const std::vector<std::string>& folders);

std::string print_surroundings(const Surroundings& around);
/// One object: rooms with their facts, and "lacking".
std::string surroundings_json(const Surroundings& around);

}  // namespace tessera
