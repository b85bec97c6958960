// How an interrupted consolidation goes on: beside each finished file lies a record of what it holds, until the whole export stands.
#pragma once
#include <cstdint>
#include <span>
#include <string>

#include "base/hash.hpp"

namespace tessera {

class ExportRecords {
 public:
  /// `identity` says which files of which checkpoint, `described` says so to people.
  ExportRecords(std::string folder, const Hash128& identity, std::string described);

  /// "NAME.finished"
  static std::string name(const std::string& file);
  /// Error(usage) where the folder has a record of another export, or one that cannot be read.
  void require_none_of_another() const;
  /// Whether the file was finished by an earlier start and is what it was: reads all of it. A file that is not is said, and to be written.
  bool stands(const std::string& file, std::int64_t bytes) const;
  /// The file is on the disk, with such content.
  void finished(const std::string& file, const Hash128& digest) const;
  /// The export is whole.
  void remove(std::span<const std::string> files) const;

 private:
  std::string path(const std::string& file) const { return folder_ + "/" + name(file); }
  std::string folder_, identity_, described_;
};

}  // namespace tessera
