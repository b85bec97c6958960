// Stacks of threads that somebody holds.
#pragma once
#include <sys/types.h>

#include <memory>
#include <string>

namespace tessera {

class Unwinder {
 public:
  virtual ~Unwinder() = default;
  /// Of a thread that this thread of this process holds: a line a function, each after a line break, the innermost first.
  virtual std::string stack(pid_t thread) = 0;
};

/// Null in a build without libdw. Stacks of a process that cannot be read say why.
std::unique_ptr<Unwinder> make_unwinder(pid_t process);

}  // namespace tessera
