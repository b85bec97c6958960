// What the host is at, for tools that look at a GPU's program from outside (Nsight Systems): ranges of NVTX.
#pragma once

namespace tessera::cuda {

/// A range of this thread, while it lives. Without a tool it costs a look at a pointer.
class Range {
 public:
  explicit Range(const char* name);
  ~Range();
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace tessera::cuda
