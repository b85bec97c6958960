// What every kernel is handed besides its operands.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/types.hpp"

namespace tessera::kernels {

/// Where and how a kernel runs. Kernels allocate nothing: temporary memory is `workspace`, sized by the op's *_workspace_bytes function.
struct Context {
  std::span<std::byte> workspace;  ///< 64-byte aligned
  bool reproducible = false;       ///< results must not depend on the number of threads
};

}  // namespace tessera::kernels
