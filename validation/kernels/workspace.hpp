// Temporary memory for tests of kernels.
#pragma once
#include <cstdlib>
#include <cstring>
#include <memory>

#include "kernels/context.hpp"

namespace tessera::kernels::testing {

/// 64-byte aligned temporary memory, filled with NaN so that a kernel which trusts old contents is found out.
class Workspace {
 public:
  explicit Workspace(std::size_t bytes) : bytes_(bytes), data_(static_cast<std::byte*>(std::aligned_alloc(64, (bytes + 127) / 64 * 64))) {
    std::memset(data_.get(), 0xff, (bytes + 127) / 64 * 64);
    std::memset(data_.get() + bytes, 0x5a, guard());
  }
  Context context(bool reproducible = false) { return {.workspace = {data_.get(), bytes_}, .reproducible = reproducible}; }
  /// Whether the kernel stayed inside.
  bool intact() const {
    for (std::size_t i = 0; i < guard(); ++i)
      if (data_.get()[bytes_ + i] != std::byte{0x5a}) return false;
    return true;
  }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::size_t guard() const { return (bytes_ + 127) / 64 * 64 - bytes_; }
  std::size_t bytes_;
  std::unique_ptr<std::byte, Free> data_;
};

}  // namespace tessera::kernels::testing
