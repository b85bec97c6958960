// One allocation per tier, placed by the memory plan, never grown. The only place where training memory comes from.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "memory/tier.hpp"

namespace tessera {

/// When a host arena's pages are taken: at once, so that no step waits for them, or by whoever comes first.
enum class FirstTouch : std::uint8_t { now, when_used };

/// A tier's memory on this rank. host: Kokkos::HostSpace, or addresses alone until they are used; huge pages asked for. shared: an
/// anonymous memory file mapped by all ranks of a node.
class Arena {
 public:
  Arena() = default;
  /// Allocates `bytes`, zeroed where the host touches them now, 4096-aligned. Throws Error(memory) that names tier, bytes and what the node
  /// has.
  Arena(Tier tier, std::size_t bytes, std::string_view label, FirstTouch touch = FirstTouch::now);
  ~Arena();
  Arena(Arena&&) noexcept;
  Arena& operator=(Arena&&) noexcept;

  Tier tier() const { return tier_; }
  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  /// File descriptor of a shared arena (-1 otherwise): peers open /proc/PID/fd/N to map it.
  int descriptor() const { return descriptor_; }

 private:
  Tier tier_ = Tier::host;
  FirstTouch touch_ = FirstTouch::now;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  int descriptor_ = -1;
  std::string label_;
};

/// Bytes of memory that this process may have of its node (physical memory, or the tightest limit of its control groups) and those still
/// free.
struct NodeMemory {
  std::size_t total = 0, available = 0;
};
NodeMemory node_memory();

}  // namespace tessera
