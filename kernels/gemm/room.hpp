// Multiprocessors that a GPU's products leave to what runs beside them.
#pragma once
#include <utility>

namespace tessera::kernels {

/// While one lives, products that this thread gives to a GPU leave so many multiprocessors free, but no more than half of them. A product
/// of cuBLASLt that takes all would put its last blocks into a second wave behind a collective's. Reproducible products leave none, because
/// another number may mean another algorithm.
class RoomBeside {
 public:
  explicit RoomBeside(int multiprocessors) : before_(std::exchange(now_, multiprocessors)) {}
  ~RoomBeside() { now_ = before_; }
  RoomBeside(const RoomBeside&) = delete;
  RoomBeside& operator=(const RoomBeside&) = delete;

  static int multiprocessors() { return now_; }

 private:
  static inline thread_local int now_ = 0;
  int before_;
};

}  // namespace tessera::kernels
