// One file of a spill, in one folder: reserved, for nobody else's eyes, gone with the process that made it.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::io {

/// What transfers ask of addresses in memory and of offsets and lengths in the file. 1: nothing.
struct Alignment {
  std::int64_t memory = 1, offset = 1;
};

class FolderFile {
 public:
  /// Makes the file and reserves `bytes` of it. Throws Error(storage).
  FolderFile(const std::string& folder, const std::string& purpose, std::int64_t bytes);
  ~FolderFile();
  FolderFile(FolderFile&&) noexcept;
  FolderFile& operator=(FolderFile&&) noexcept;

  int descriptor() const { return descriptor_; }
  /// For messages: its name, or in the folder what it is for.
  const std::string& path() const { return path_; }
  /// Whether transfers go past the page cache.
  bool direct() const { return direct_; }
  Alignment alignment() const { return alignment_; }
  /// Whether it has no name, so that no crash leaves it behind.
  bool nameless() const { return name_.empty(); }
  /// What the file system refused, a clause each.
  const std::vector<std::string>& notes() const { return notes_; }

  /// On return what was written is on the disk.
  void sync();
  /// Closes and removes; reports what the system says.
  void close();

 private:
  FolderFile() = default;
  void make(const std::string& folder);
  void make_named(const std::string& folder);
  void reserve(std::int64_t bytes);
  void go_direct(const std::string& folder);
  int descriptor_ = -1;
  bool direct_ = false;
  Alignment alignment_;
  std::string path_, name_;  // name_: of a file that cannot be removed while it is open
  std::vector<std::string> notes_;
};

/// Removes files of spills whose processes are gone; returns how many. They stay behind only where a file could not be without a name.
int remove_left_spill_files(const std::string& folder);

/// "ext4", "tmpfs", ... of the file system that holds an open file; its number where we have no word for it.
std::string file_system_of(int descriptor);

}  // namespace tessera::io
