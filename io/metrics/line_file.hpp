// A file of a run that lines are added to, whatever becomes of its name meanwhile.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "io/files/posix_file.hpp"

namespace tessera::io {

/// Appends lines to PATH; each is one write that is the system's when it returns, so a kill loses at most the line under way. Where
/// somebody moves, removes or replaces the file meanwhile, it is written anew with all its lines, and that is said once; a file that took
/// its place is kept as PATH.old-N. A link is refused, and what else is called so, by a hard link, keeps its lines. The folder must be
/// there.
class LineFile {
 public:
  /// `kept`: bytes at the head of the file that stand; what comes after them is cut off.
  LineFile(const std::string& path, const std::function<std::int64_t(const PosixFile&)>& kept);
  /// With its end ("\n").
  void write(std::string_view line);

 private:
  void write_anew();
  void replace();
  std::string path_;
  PosixFile file_;
  std::int64_t end_ = 0;
};

/// Bytes of whole lines: without a last line that a kill has cut.
std::int64_t whole_lines(const PosixFile& file);

}  // namespace tessera::io
