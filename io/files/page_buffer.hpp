// Memory for pieces on their way between files, which goes past the page cache.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>
#include <span>

#include "base/types.hpp"

namespace tessera::io {

/// Whole pages that stay from one piece to the next. What they held before is there still: nobody clears them.
class PageBuffer {
 public:
  static constexpr std::int64_t page = 4096;

  std::span<std::byte> bytes(std::int64_t n) {
    if (n > size_) {
      size_ = round_up(n, page);
      memory_.reset(static_cast<std::byte*>(std::aligned_alloc(page, static_cast<std::size_t>(size_))));
      if (!memory_) {
        size_ = 0;
        throw std::bad_alloc();
      }
    }
    return {memory_.get(), static_cast<std::size_t>(n)};
  }
  std::span<float> floats(std::int64_t n) { return {reinterpret_cast<float*>(bytes(4 * n).data()), static_cast<std::size_t>(n)}; }

 private:
  struct Free {
    void operator()(std::byte* p) const { std::free(p); }
  };
  std::unique_ptr<std::byte, Free> memory_;
  std::int64_t size_ = 0;
};

}  // namespace tessera::io
