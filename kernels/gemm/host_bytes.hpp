// Addresses and sizes of what products on the host read and write.
#pragma once
#include <cstddef>
#include <cstdint>

#include "base/types.hpp"

namespace tessera::kernels::host {

inline constexpr std::size_t line = 64;  ///< bytes of the cache's

inline std::size_t aligned(std::size_t bytes) { return (bytes + line - 1) / line * line; }

inline const std::byte* at(const void* p, std::int64_t elements, DType t) {
  return static_cast<const std::byte*>(p) + elements * static_cast<std::int64_t>(size_of(t));
}
inline std::byte* at(void* p, std::int64_t elements, DType t) {
  return static_cast<std::byte*>(p) + elements * static_cast<std::int64_t>(size_of(t));
}

}  // namespace tessera::kernels::host
