// How requests reach the disks: io_uring, or threads that call pread and pwrite.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::io {

/// One read or write. The transport moves what it can at once: a result may be short.
struct Request {
  bool write = false;
  int file = 0;  ///< index among the transport's descriptors
  std::int64_t offset = 0, bytes = 0;
  std::byte* memory = nullptr;
  std::int64_t result = 0;  ///< bytes moved, or -errno
};

/// start() and wake() may be called by any thread, collect() by one at a time.
class Transport {
 public:
  virtual ~Transport() = default;
  /// True: it has ended and its result is there. False: collect() will give it back, perhaps to another thread before this returns.
  virtual bool start(Request&) = 0;
  /// Waits for requests to end, or for wake(); adds those that have ended.
  virtual void collect(std::vector<Request*>& ended) = 0;
  virtual void wake() = 0;
  /// Whether start() ever returns false.
  virtual bool asynchronous() const = 0;
  /// Threads that keep `queue_depth` requests with the disks.
  virtual int threads(int wanted, int queue_depth) const = 0;
  /// "io_uring" or "threads", and "registered buffers" where it has them.
  virtual const char* name() const = 0;
  virtual bool registered() const { return false; }
};

/// For at most `depth` requests at a time, with this memory registered. What the kernel refuses is added to `notes`; null where that is
/// io_uring.
std::unique_ptr<Transport> make_uring_transport(const std::vector<int>& descriptors, int depth,
                                                const std::vector<std::span<std::byte>>& memory, std::vector<std::string>& notes);
std::unique_ptr<Transport> make_thread_transport(const std::vector<int>& descriptors);

/// Why this process has no io_uring; empty where it has.
std::string why_no_io_uring();

}  // namespace tessera::io
