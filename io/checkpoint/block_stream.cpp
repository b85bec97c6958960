#include "io/checkpoint/block_stream.hpp"

#include <algorithm>
#include <utility>

namespace tessera::io {
namespace {

constexpr std::int64_t streamed_blocks = 4;

}  // namespace

void BlockStream::stop() {
  for (Run* run : {&now_, &next_}) {
    if (run->reading.valid()) run->reading.wait();
    run->reading = {};
    run->begin = run->end = 0;
  }
  file_ = nullptr;
}

/// By a thread. After the slice's last block there is nothing.
void BlockStream::read(Run& run, std::int64_t begin) {
  run.begin = run.end = 0;  // also where there is no memory, or no thread
  const std::int64_t end = std::min(begin + streamed_blocks, file_->slice(slice_).blocks());
  if (begin >= end) return;
  float* out = run.memory.floats(streamed_blocks * hash_block).data();
  run.reading = std::async(std::launch::async, [this, out, begin, end] { file_->read_run(slice_, *table_, begin, end, out); });
  run.begin = begin, run.end = end;
}

const float* BlockStream::of(Run& run, std::int64_t block) {
  try {
    if (run.reading.valid()) run.reading.get();
  } catch (...) {
    stop();
    throw;
  }
  return run.memory.floats(streamed_blocks * hash_block).data() + (block - run.begin) * hash_block;
}

const float* BlockStream::find(const ShardFile& file, std::size_t slice, std::int64_t block) {
  if (file_ != &file || slice_ != slice) return nullptr;
  if (block >= next_.begin && block < next_.end) {
    std::swap(now_, next_);
    read(next_, now_.end);
  }
  return block >= now_.begin && block < now_.end ? of(now_, block) : nullptr;
}

const float* BlockStream::start(ShardFile& file, std::size_t slice, std::int64_t block) {
  stop();
  file_ = &file, slice_ = slice, table_ = &file.table(slice);
  read(now_, block);
  read(next_, now_.end);
  return of(now_, block);
}

}  // namespace tessera::io
