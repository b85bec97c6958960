#include "topology/failure/peer_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace tessera {
namespace {

/// Where one of our descriptors leads to: "/memfd:parameters (deleted)". Cut where it does not fit; empty where it cannot be read.
void read_name(int descriptor, char (&name)[64]) {
  const ssize_t size = readlink(fmt::format("/proc/self/fd/{}", descriptor).c_str(), name, sizeof name - 1);
  name[std::max<ssize_t>(size, 0)] = '\0';
}

}  // namespace

ProcessName ProcessName::own() {
  ProcessName name{.pid = getpid()};
  struct stat space;
  if (stat("/proc/self/ns/pid", &space) == 0) name.namespace_device = space.st_dev, name.namespace_inode = space.st_ino;
  return name;
}

bool ProcessName::means_the_same_here() const {
  const ProcessName here = own();
  return namespace_inode != 0 && namespace_inode == here.namespace_inode && namespace_device == here.namespace_device;
}

PeerFile PeerFile::of(int descriptor) {
  PeerFile file;
  struct stat found;
  if (descriptor < 0 || fstat(descriptor, &found) != 0) return file;
  file.owner = ProcessName::own();
  file.descriptor = descriptor;
  file.device = found.st_dev;
  file.inode = found.st_ino;
  read_name(descriptor, file.name);
  return file;
}

int PeerFile::open(std::size_t bytes, std::string& reason) const {
  if (!owner.means_the_same_here()) {
    reason = "its process is in another PID namespace (its own container)";
    return -1;
  }
  const std::string path = fmt::format("/proc/{}/fd/{}", owner.pid, descriptor);
  const auto refused = [&](const std::string& why) {
    reason = fmt::format("{}: {}", path, why);
    return -1;
  };
  // Nothing of the file is touched before it is known; and what was looked at is what is opened then.
  const int look = ::open(path.c_str(), O_PATH | O_CLOEXEC);
  if (look < 0) return refused(std::strerror(errno));
  struct stat found;
  char found_name[sizeof name];
  read_name(look, found_name);
  const bool same = fstat(look, &found) == 0 && found.st_dev == device && found.st_ino == inode && S_ISREG(found.st_mode) &&
                    std::strncmp(name, "/memfd:", 7) == 0 && std::strcmp(name, found_name) == 0 &&
                    static_cast<std::size_t>(found.st_size) >= bytes;
  const int opened = same ? ::open(fmt::format("/proc/self/fd/{}", look).c_str(), O_RDWR | O_CLOEXEC) : -1;
  const int error_number = errno;
  close(look);
  if (!same) return refused("it is not the announced memory (/proc belongs to another PID namespace)");
  return opened < 0 ? refused(std::strerror(error_number)) : opened;
}

}  // namespace tessera
