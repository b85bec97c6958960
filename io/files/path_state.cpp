#include "io/files/path_state.hpp"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>

namespace tessera::io {
namespace {

using Kind = PathState::Kind;

PathState found(const struct stat& s) {
  const Kind kind = S_ISREG(s.st_mode) ? Kind::file : S_ISDIR(s.st_mode) ? Kind::folder : Kind::other;
  return {.kind = kind, .reason = "", .device = s.st_dev, .number = s.st_ino};
}

/// ENOTDIR says it too: a name below a file names nothing.
PathState not_found(int error_number) {
  if (error_number == ENOENT || error_number == ENOTDIR) return {};
  return {.kind = Kind::unknown, .reason = std::strerror(error_number)};
}

}  // namespace

PathState look_at_link(const std::string& path) {
  struct stat s;
  return ::lstat(path.c_str(), &s) == 0 ? found(s) : not_found(errno);
}

PathState look_at(const std::string& path) {
  struct stat s;
  if (::stat(path.c_str(), &s) == 0) return found(s);
  PathState state = not_found(errno);
  if (state.nothing() && look_at_link(path).exists()) return {.kind = Kind::unknown, .reason = "it is a link to nothing"};
  return state;
}

PathState look_at(int descriptor) {
  struct stat s;
  return ::fstat(descriptor, &s) == 0 ? found(s) : not_found(errno);
}

}  // namespace tessera::io
