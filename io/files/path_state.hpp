// What the file system says of a path. "There is nothing here" and "this cannot be read" are different answers: whoever takes the second
// for the first starts a run anew over one that only could not be reached.
#pragma once
#include <cstdint>
#include <string>

namespace tessera::io {

struct PathState {
  enum class Kind { nothing, file, folder, other, unknown };
  Kind kind = Kind::nothing;
  std::string reason;                    ///< of unknown: the system's words, or that a link leads nowhere
  std::uint64_t device = 0, number = 0;  ///< of what was found: the same for two names of one file

  bool exists() const { return kind != Kind::nothing && kind != Kind::unknown; }
  bool nothing() const { return kind == Kind::nothing; }
  bool unknown() const { return kind == Kind::unknown; }
  bool same_as(const PathState& other) const { return exists() && other.exists() && device == other.device && number == other.number; }
};

/// Follows links. A link that leads to nothing is unknown: somebody expected something there.
PathState look_at(const std::string& path);
/// Does not follow: a link is `other`.
PathState look_at_link(const std::string& path);
/// Of an open file.
PathState look_at(int descriptor);

}  // namespace tessera::io
