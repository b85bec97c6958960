// What a spill would find on this node, before a run depends on it: room, permissions, how transfers would go and how fast.
#pragma once
#include <string>
#include <vector>

#include "io/nvme/folder_file.hpp"
#include "io/nvme/spill_file.hpp"

namespace tessera::io {

struct SpillFolder {
  std::string folder;
  std::string file_system;               ///< "ext4", "tmpfs", ...
  std::int64_t free_bytes = 0;           ///< that this user may take
  std::int64_t needed_bytes = 0;         ///< of this folder and of the others on the same file system
  bool usable = false;                   ///< a file could be made, written and read
  bool direct = false;                   ///< past the page cache
  bool nameless = false;                 ///< no crash leaves a file behind
  Alignment alignment;                   ///< that direct transfers ask for
  double write_rate = 0, read_rate = 0;  ///< bytes a second, verified; 0: not measured
};

struct SpillPreflight {
  std::vector<SpillFolder> folders;
  std::string how;                    ///< of a trial in the first usable folder: SpillFile::how()
  std::int64_t memlock_bytes = -1;    ///< -1: no limit
  std::int64_t registered_bytes = 0;  ///< that would be locked
  std::vector<std::string> problems;  ///< why it would fail, each with what to do
  std::vector<std::string> notes;     ///< what would be slower or less private than it could be, each with what to do
};

/// Looks at what these options ask for and tries a file of `trial_bytes` in each folder (0: tries without measuring). Throws nothing of
/// what it finds: that is the result.
SpillPreflight preflight_spill(const SpillOptions&, std::int64_t trial_bytes = 64 << 20);

}  // namespace tessera::io
