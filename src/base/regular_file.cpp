#include "base/regular_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/open_files.hpp"
#include "base/types.hpp"

namespace tessera {

const char* other_than_regular(const struct stat& what) {
  if (S_ISREG(what.st_mode)) return nullptr;
  if (S_ISDIR(what.st_mode)) return "folder";
  if (S_ISFIFO(what.st_mode)) return "pipe";
  return S_ISSOCK(what.st_mode) ? "socket" : "device";
}

int open_regular(const std::string& path, std::string& why) {
  // O_NONBLOCK: opening a pipe that nobody writes to would wait for ever. It means nothing to a regular file.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  struct stat what;
  if (descriptor < 0 || ::fstat(descriptor, &what) != 0) {
    why = fmt::format("cannot open: {}. {}", std::strerror(errno), open_advice(errno));
  } else if (const char* other = other_than_regular(what)) {
    why = fmt::format(
        "this is a {}, but a regular file is needed, because its size must be known and it is read at any place. Give a file.", other);
  } else {
    return descriptor;
  }
  if (descriptor >= 0) ::close(descriptor);
  return -1;
}

bool read_regular(const std::string& path, std::int64_t most, std::string& bytes, std::string& why) {
  const int descriptor = open_regular(path, why);
  if (descriptor < 0) return false;
  // Files of /proc say that they are empty, and others may grow: what counts is what is read. One byte more than allowed is enough to know.
  const std::size_t limit = static_cast<std::size_t>(most) + 1;
  struct stat what;
  std::size_t room = ::fstat(descriptor, &what) == 0 ? static_cast<std::size_t>(what.st_size) + 1 : 0;
  bytes.clear();
  std::size_t done = 0;
  ssize_t n = 1;
  while (done < limit && n != 0) {
    if (done == bytes.size()) bytes.resize(std::min(limit, std::max(room, 2 * done + 4096))), room = 0;
    n = ::read(descriptor, bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) break;
    done += static_cast<std::size_t>(n);
  }
  if (n < 0) why = fmt::format("cannot be read: {}. Check the file system.", std::strerror(errno));
  if (done > static_cast<std::size_t>(most))
    why = fmt::format("it is larger than {}, the limit here. Is this the right file?", human_bytes(static_cast<double>(most)));
  ::close(descriptor);
  bytes.resize(done);
  return n >= 0 && done <= static_cast<std::size_t>(most);
}

}  // namespace tessera
