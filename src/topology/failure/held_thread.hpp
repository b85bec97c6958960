// A thread of another process that stands still while somebody reads its stack.
#pragma once
#include <sys/types.h>

namespace tessera {

/// Held from the constructor to the destructor, both on the same thread of this process.
class HeldThread {
 public:
  /// Waits until `deadline`, of now_seconds(), for the thread to stand: one that the kernel is busy for does not.
  HeldThread(pid_t thread, double deadline);
  ~HeldThread();
  HeldThread(const HeldThread&) = delete;
  HeldThread& operator=(const HeldThread&) = delete;

  bool held() const { return held_; }
  int error() const { return error_; }  ///< where it is not: an errno

 private:
  pid_t thread_;
  bool held_ = false;
  int error_ = 0;
  int signal_ = 0;  ///< that met it meanwhile, and that it gets afterwards
};

}  // namespace tessera
