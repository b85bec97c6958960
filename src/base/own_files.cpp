#include "base/own_files.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace tessera {

int new_file(const char* path, mode_t mode) noexcept { return open(path, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode); }

int create_file(const char* path, mode_t mode) noexcept {
  constexpr int tries = 8;  // somebody may put another one there
  int file = -1;
  for (int i = 0; i < tries; ++i) {
    file = new_file(path, mode);
    if (file >= 0 || errno != EEXIST) break;
    if (unlink(path) != 0 && errno != ENOENT) break;
    errno = EEXIST;
  }
  return file;
}

int update_file(const char* path, mode_t mode) noexcept {
  // O_NONBLOCK: a pipe would be waited for. It means nothing to a regular file.
  return open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, mode);
}

int open_output(const char* path) noexcept { return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666); }

std::string make_own_folder(const std::string& path) {
  constexpr mode_t ours = 0700, others = 0077;
  if (mkdir(path.c_str(), ours) == 0) return "";
  if (errno != EEXIST) return std::strerror(errno);
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  struct stat found;
  std::string fault;
  if (folder < 0 || fstat(folder, &found) != 0)
    fault = errno == ENOTDIR || errno == ELOOP ? "a file or a link is there already" : std::strerror(errno);
  else if (found.st_uid != geteuid())
    fault = fmt::format("it belongs to another user (number {})", found.st_uid);
  else if ((found.st_mode & others) != 0 && fchmod(folder, ours) != 0)
    fault = fmt::format("other users may read it: {}", std::strerror(errno));
  if (folder >= 0) close(folder);
  return fault;
}

}  // namespace tessera
