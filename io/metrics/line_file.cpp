#include "io/metrics/line_file.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "io/files/path_state.hpp"

namespace tessera::io {

/// Puts a file with the lines so far in place of what has the name.
void LineFile::replace() {
  std::string lines(static_cast<std::size_t>(end_), '\0');
  lines.resize(file_.read(0, lines.data(), lines.size()));  // the open file has them still, wherever its name went
  AtomicFile fresh(path_);
  fresh.file().write(0, lines.data(), lines.size());
  fresh.commit();
  file_ = PosixFile::update(path_);
  end_ = static_cast<std::int64_t>(lines.size());
}

void LineFile::write_anew() {
  for (int n = 1; !look_at_link(path_).nothing(); ++n)
    if (const std::string aside = fmt::format("{}.old-{}", path_, n); look_at_link(aside).nothing()) rename_path(path_, aside);
  replace();
  warning("{} was moved, removed or replaced while the run writes it: it was rewritten with all its rows.", path_);
}

LineFile::LineFile(const std::string& path, const std::function<std::int64_t(const PosixFile&)>& kept)
    : path_(path), file_(PosixFile::update(path)), end_(kept(file_)) {
  if (file_.has_other_names())
    replace();
  else
    file_.truncate(end_);
}

void LineFile::write(std::string_view line) {
  // What the file system does not tell is left to the write.
  if (const PathState there = look_at(path_); !there.unknown() && !there.same_as(file_.state())) write_anew();
  file_.write(end_, line.data(), line.size());
  end_ += static_cast<std::int64_t>(line.size());
}

std::int64_t whole_lines(const PosixFile& file) {
  std::string part(1 << 16, '\0');
  for (std::int64_t end = file.size(); end > 0;) {
    const std::int64_t begin = std::max<std::int64_t>(end - std::ssize(part), 0);
    const std::size_t n = file.read(begin, part.data(), static_cast<std::size_t>(end - begin));
    if (const std::size_t last = std::string_view(part).substr(0, n).rfind('\n'); last != part.npos)
      return begin + static_cast<std::int64_t>(last) + 1;
    end = begin;
  }
  return 0;
}

}  // namespace tessera::io
