// What several ranks keep the same copy of, as digests: a bit that has turned over in one of them shows by comparison, and nowhere else.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "topology/world.hpp"

namespace tessera {

/// Of a buffer, or of state, that `what` names the same way on all ranks with a copy.
struct CopyDigest {
  std::string what;  ///< "weights of layers.2 (ranks 0, 1, 2, 3)"
  Hash128 digest;
};

/// Copies that are not all the same.
struct DifferentCopies {
  std::string what;
  std::vector<std::vector<int>> ranks;  ///< by content, the most frequent first
};

/// What this rank's copies were after steps at which all ranks' agreed. State that is read back must be the same: a bit that turns over
/// between the comparison after a step and its save goes into the checkpoint.
class AgreedCopies {
 public:
  void note(std::int64_t step, const std::vector<CopyDigest>& copies);
  /// Whether these were others after that step; false where it was not compared, or too long ago.
  bool differ(std::int64_t step, const std::vector<CopyDigest>& copies) const;
  static constexpr std::size_t kept = 65'536;  ///< comparisons, the newest

 private:
  std::map<std::int64_t, Hash128> by_step_;
};

/// Of what each rank has, by rank: those that differ.
std::vector<DifferentCopies> compare_copies(const std::vector<std::vector<CopyDigest>>& of_ranks);
/// The same over all ranks of a world. Collective.
std::vector<DifferentCopies> compare_copies(const World& world, const std::vector<CopyDigest>& mine);

}  // namespace tessera
