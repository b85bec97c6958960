// Blocks of a slice one after the other, as an export asks for them.
#pragma once
#include <cstdint>
#include <future>

#include "io/checkpoint/shard_file.hpp"
#include "io/files/page_buffer.hpp"

namespace tessera::io {

/// Reads the blocks of a slice in order, past the page cache: while those of one run are used, a thread reads the next run. The file must
/// outlive it, or be given to leave().
class BlockStream {
 public:
  ~BlockStream() { stop(); }
  /// A verified block of the stream, until the next call; null where it has none. Throws what ShardFile does.
  const float* find(const ShardFile& file, std::size_t slice, std::int64_t block);
  /// Begins anew with this block, which it gives.
  const float* start(ShardFile& file, std::size_t slice, std::int64_t block);
  /// Before the file is closed.
  void leave(const ShardFile& file) {
    if (file_ == &file) stop();
  }

 private:
  struct Run {
    std::int64_t begin = 0, end = 0;  ///< blocks
    PageBuffer memory;
    std::future<void> reading;
  };
  void stop();
  void read(Run& run, std::int64_t begin);
  const float* of(Run& run, std::int64_t block);

  const ShardFile* file_ = nullptr;
  std::size_t slice_ = 0;
  const std::vector<Hash128>* table_ = nullptr;
  Run now_, next_;
};

}  // namespace tessera::io
