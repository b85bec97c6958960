// A memory file that another process of this node has open.
#pragma once
#include <sys/types.h>

#include <string>

namespace tessera {

/// A process as others of its node may name it. The number means something in one PID namespace alone, and a container may have its own.
struct ProcessName {
  pid_t pid = 0;
  dev_t namespace_device = 0;
  ino_t namespace_inode = 0;  ///< 0: not known

  static ProcessName own();
  /// Whether `pid` is this process's name in our PID namespace too.
  bool means_the_same_here() const;
};

/// A memory file as its owner announces it. What /proc/PID/fd/N leads to may be another file, of the same number in another process: it
/// is opened only if it is this one.
struct PeerFile {
  ProcessName owner;
  int descriptor = -1;  ///< of the owner's; -1: none is announced
  dev_t device = 0;
  ino_t inode = 0;
  char name[64] = {};  ///< where the owner's descriptor leads to, as far as it fits

  /// What this process announces of a file that it has open. Without a descriptor where the file cannot be named.
  static PeerFile of(int descriptor);
  /// Opens the announced file, of at least `bytes`, to read and write. -1 where it cannot be, and `reason` says why.
  int open(std::size_t bytes, std::string& reason) const;
};

}  // namespace tessera
