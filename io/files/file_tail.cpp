#include "io/files/file_tail.hpp"

#include <algorithm>

#include "io/files/posix_file.hpp"

namespace tessera::io {

FileTail read_tail(const std::string& path, std::int64_t most) {
  if (look_at(path).nothing()) return {};
  const PosixFile file = PosixFile::open(path, ExitCode::storage);
  const std::int64_t size = file.size(), begin = std::max<std::int64_t>(size - most, 0);
  FileTail tail{.text = std::string(static_cast<std::size_t>(size - begin), '\0'), .cut = begin > 0};
  tail.text.resize(file.read(begin, tail.text.data(), tail.text.size()));
  return tail;
}

}  // namespace tessera::io
