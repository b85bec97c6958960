#include "io/nvme/spill_engine.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/types.hpp"

namespace tessera::io {
namespace {

/// Each thread has a block in its hands beside those that the disks have.
int slots_of(const SpillOptions& o) { return o.queue_depth + o.threads; }

std::int64_t blocks_of(const SpillOptions& o) { return ceil_div(o.bytes, o.block_bytes); }

void check(const SpillOptions& o) {
  TESSERA_REQUIRE(!o.folders.empty() && o.bytes > 0 && o.queue_depth > 0 && o.queue_depth <= 4096 && o.threads > 0);
  TESSERA_REQUIRE(o.block_bytes > 0 && o.block_bytes % 4096 == 0 && o.block_bytes <= 1 << 30, "block_bytes {}", o.block_bytes);
}

}  // namespace

Pages::Pages(std::size_t bytes) {
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED)
    fail(ExitCode::memory, "{} of memory for a disk tier's buffers are not available.", human_bytes(static_cast<double>(bytes)));
  (void)::madvise(p, bytes, MADV_HUGEPAGE);  // only a hint: fewer pieces for the disk to gather
  all_ = {static_cast<std::byte*>(p), bytes};
}

Pages::~Pages() { ::munmap(all_.data(), all_.size()); }

std::int64_t staging_bytes(const SpillOptions& o) { return slots_of(o) * o.block_bytes; }

std::int64_t spill_memory_bytes(const SpillOptions& o) {
  return (o.staging.empty() ? staging_bytes(o) : 0) + blocks_of(o) * static_cast<std::int64_t>(sizeof(SpillEngine::Block));
}

SpillEngine::SpillEngine(const SpillOptions& options)
    : options_((check(options), options)),
      blocks_(static_cast<std::size_t>(blocks_of(options))),
      staging_(options.staging.empty() ? own_staging_.emplace(static_cast<std::size_t>(staging_bytes(options))).all() : options.staging) {
  TESSERA_REQUIRE(static_cast<std::int64_t>(staging_.size()) == staging_bytes(options), "{} bytes of staging", staging_.size());
  const auto folders = static_cast<std::int64_t>(options_.folders.size());
  std::vector<int> descriptors;
  for (const auto& folder : options_.folders) {
    files_.emplace_back(folder, options_.purpose, ceil_div(blocks_of(options_), folders) * options_.block_bytes);
    const FolderFile& file = files_.back();
    descriptors.push_back(file.descriptor());
    alignment_ = {std::max(alignment_.memory, file.alignment().memory), std::max(alignment_.offset, file.alignment().offset)};
    notes_.insert(notes_.end(), file.notes().begin(), file.notes().end());
    if (options_.block_bytes % file.alignment().offset != 0)
      fail(ExitCode::environment, "{}: direct transfers there need multiples of {}, but the block size is {}. Set it to a multiple.",
           folder, human_bytes(static_cast<double>(file.alignment().offset)), human_bytes(static_cast<double>(options_.block_bytes)));
  }
  std::optional<CipherKey> key;
  if (options_.encrypt) {
    key.emplace();
    alignment_.offset = std::max(alignment_.offset, SectorCipher::sector);
  }
  auto memory = options_.memory;
  memory.push_back(staging_);
  transport_ = make_uring_transport(descriptors, slots_of(options_), memory, notes_);
  if (!transport_) transport_ = make_thread_transport(descriptors);
  make_slots(key ? &*key : nullptr);
  start_workers();
}

void SpillEngine::start_workers() {
  const int threads = transport_->threads(options_.threads, options_.queue_depth);
  try {
    for (int i = 0; i < threads; ++i) workers_.emplace_back([this] { work(); });
  } catch (const std::system_error& e) {
    stop_workers();
    fail(ExitCode::environment,
         "{} of {} threads of a disk tier could not be started ({}). Raise the limits on threads (ulimit -u, pids of the container).",
         threads - static_cast<int>(workers_.size()), threads, e.code().message());
  }
}

void SpillEngine::stop_workers() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    waiting_.clear();
    if (collecting_) transport_->wake();
  }
  work_.notify_all();
  for (auto& w : workers_) w.join();
}

void SpillEngine::make_slots(const CipherKey* key) {
  slots_ = std::vector<Slot>(static_cast<std::size_t>(slots_of(options_)));
  std::byte* staging = staging_.data();
  for (Slot& s : slots_) {
    s.staging = std::exchange(staging, staging + options_.block_bytes);
    if (key) s.cipher.emplace(*key);
    free_.push_back(&s);
  }
}

SpillEngine::~SpillEngine() { stop_workers(); }

std::shared_ptr<Transfer> SpillEngine::submit(bool write, std::int64_t offset, std::byte* memory, std::int64_t bytes, std::string unit) {
  TESSERA_REQUIRE(offset >= 0 && bytes >= 0 && offset + bytes <= options_.bytes, "{} bytes at {} of a spill of {} ({})", bytes, offset,
                  options_.bytes, unit);
  const std::int64_t first = offset / options_.block_bytes, last = ceil_div(offset + bytes, options_.block_bytes);
  auto t = std::make_shared<Transfer>(Transfer{.write = write,
                                               .offset = offset,
                                               .bytes = bytes,
                                               .memory = memory,
                                               .unit = std::move(unit),
                                               .next_block = first,
                                               .end_block = last,
                                               .blocks_left = bytes > 0 ? last - first : 0,
                                               .error = nullptr,
                                               .error_block = 0});
  if (bytes == 0) return t;
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return !shares_block(*t); });
  active_.push_back(t);
  waiting_.push_back(t);
  if (collecting_ && !free_.empty()) transport_->wake();
  lock.unlock();
  work_.notify_all();
  return t;
}

/// With a transfer under way, one of the two writing.
bool SpillEngine::shares_block(const Transfer& t) const {
  return std::any_of(active_.begin(), active_.end(), [&](const auto& a) {
    const auto block = options_.block_bytes;
    return (a->write || t.write) && t.offset / block < ceil_div(a->offset + a->bytes, block) && a->offset / block < t.end_block;
  });
}

void SpillEngine::wait(const Transfer& t) {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return t.blocks_left == 0; });
  if (t.error) std::rethrow_exception(t.error);
}

bool SpillEngine::ended(const Transfer& t, double seconds) {
  std::unique_lock lock(mutex_);
  return ended_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return t.blocks_left == 0; });
}

void SpillEngine::drain() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return active_.empty(); });
}

/// A worker: the disk is fed first, then what it has answered is worked on, then one of the workers waits for it.
void SpillEngine::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    if (Slot* s = next_slot()) {
      lock.unlock();
      advance(*s, false);
      lock.lock();
    } else if (!answered_.empty()) {
      s = answered_.front();
      answered_.pop_front();
      lock.unlock();
      advance(*s, true);
      lock.lock();
    } else if (asked_ > 0 && !collecting_) {
      collect(lock);
    } else if (stopping_ && asked_ == 0) {
      return;
    } else {
      work_.wait(lock);
    }
  }
}

/// A free slot with the next block; null where either is missing.
SpillEngine::Slot* SpillEngine::next_slot() {
  if (free_.empty() || waiting_.empty()) return nullptr;
  Slot* s = free_.back();
  free_.pop_back();
  s->transfer = waiting_.front();
  Transfer& t = *s->transfer;
  s->block = t.next_block++;
  if (t.next_block == t.end_block) waiting_.pop_front();
  const std::int64_t at = s->block * options_.block_bytes;
  s->begin = std::max<std::int64_t>(t.offset - at, 0);
  s->end = std::min(t.offset + t.bytes - at, options_.block_bytes);
  s->caller = t.memory + (at + s->begin - t.offset);
  s->write = t.write;
  return s;
}

/// Asks the disk. True: it has answered already; false: the slot is another's now.
bool SpillEngine::issue(Slot& s) {
  {
    const std::lock_guard lock(mutex_);
    s.since = now_seconds();
    if (transport_->asynchronous()) ++asked_;
  }
  if (!transport_->start(s)) {
    work_.notify_one();  // somebody has to wait for it
    return false;
  }
  const std::lock_guard lock(mutex_);
  s.since = 0;
  if (transport_->asynchronous()) --asked_;
  return true;
}

void SpillEngine::collect(std::unique_lock<std::mutex>& lock) {
  std::vector<Request*> ended;
  collecting_ = true;
  lock.unlock();
  transport_->collect(ended);
  lock.lock();
  collecting_ = false;
  asked_ -= static_cast<int>(ended.size());
  for (Request* r : ended) {
    auto* s = static_cast<Slot*>(r);
    s->since = 0;
    answered_.push_back(s);
  }
  if (workers_.size() > 1) work_.notify_all();
}

/// The block has ended, in one way or the other.
void SpillEngine::retire(Slot& s) {
  bool last, stopping;
  {
    const std::lock_guard lock(mutex_);
    const auto t = std::move(s.transfer);
    free_.push_back(&s);
    last = --t->blocks_left == 0;
    if (last) active_.remove(t);
    stopping = stopping_;
  }
  if (last) ended_.notify_all();
  if (stopping) work_.notify_all();  // else this worker takes the slot itself
}

std::vector<UnderWay> SpillEngine::under_way() {
  std::vector<UnderWay> all;
  const std::lock_guard lock(mutex_);
  const double now = now_seconds();
  for (const Slot& s : slots_)
    if (s.since > 0)
      all.push_back({.write = s.Request::write,
                     .file = files_[static_cast<std::size_t>(s.file)].path(),
                     .unit = s.transfer->unit,
                     .offset = s.offset,
                     .bytes = s.Request::bytes,
                     .seconds = now - s.since});
  std::sort(all.begin(), all.end(), [](const UnderWay& a, const UnderWay& b) { return a.seconds > b.seconds; });
  return all;
}

std::string SpillEngine::how() const {
  const bool direct = std::all_of(files_.begin(), files_.end(), [](const FolderFile& f) { return f.direct(); });
  std::string text = fmt::format("{}, depth {}, {}", transport_->name(), options_.queue_depth, direct ? "O_DIRECT" : "page cache");
  if (transport_->registered()) text += ", registered buffers";
  if (options_.encrypt) text += ", AES-256-XTS";
  if (files_.size() > 1) text += fmt::format(", over {} folders", files_.size());
  return notes_.empty() ? text : fmt::format("{}: {}", text, fmt::join(notes_, "; "));
}

void SpillEngine::close() {
  drain();
  if (options_.wipe) overwrite_all();
  for (auto& file : files_) file.close();
}

/// Zeros over all that was ever written, down to the disk.
void SpillEngine::overwrite_all() {
  const Pages zeros(static_cast<std::size_t>(options_.block_bytes));
  std::vector<std::shared_ptr<Transfer>> under_way;
  for (std::size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].valid == 0 && !blocks_[i].lost) continue;
    const std::int64_t at = static_cast<std::int64_t>(i) * options_.block_bytes;
    under_way.push_back(submit(true, at, zeros.all().data(), std::min(options_.block_bytes, options_.bytes - at), "wiping"));
  }
  drain();
  for (const auto& t : under_way) wait(*t);
  for (auto& file : files_) file.sync();
}

}  // namespace tessera::io
