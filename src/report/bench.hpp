// What measurements of kernels share: memory with harmless numbers, and the time of a call among calls.
#pragma once
#include <functional>

#include "kernels/context.hpp"
#include "memory/arena.hpp"
#include "topology/world.hpp"

namespace tessera {

class Bench {
 public:
  /// `bytes` of the memory that kernels use, filled with small numbers that are valid in every type.
  Bench(const World& world, kernels::Backend backend, std::size_t bytes);

  const World& world() const { return world_; }
  kernels::Backend backend() const { return backend_; }
  /// The next bytes, aligned; everything is handed out anew after release(). Throws Error(memory) where there are no more.
  void* take(std::size_t bytes);
  std::size_t left() const { return arena_.bytes() - taken_; }
  void release() { taken_ = 0; }
  /// Puts the numbers there again that calls may have spoilt.
  void refill();
  kernels::Context context(std::size_t workspace);

  /// Seconds of a call, the mean of the faster half of a few rounds; short calls are timed many at once. All ranks begin together, and call
  /// as often.
  double seconds(const std::function<void()>& call) const;

 private:
  const World& world_;
  kernels::Backend backend_;
  Arena arena_;
  std::size_t taken_ = 0;
};

/// Four digits are all that is known.
double rounded(double value);

}  // namespace tessera
