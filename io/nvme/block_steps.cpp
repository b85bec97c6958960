// What happens to one block. Nothing here waits for a disk that answers asynchronously: a step ends where the disk is asked.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include "base/check.hpp"
#include "base/types.hpp"
#include "io/files/posix_file.hpp"
#include "io/nvme/spill_engine.hpp"

namespace tessera::io {
namespace {

constexpr int most_refusals = 300;  // EAGAIN in a row, a millisecond apart

}  // namespace

/// From here until the disk is asked or the block has ended. `begun`: the disk has answered.
void SpillEngine::advance(Slot& s, bool begun) {
  try {
    bool ask_disk = begun ? take_result(s) : begin(s);
    while (ask_disk) {
      if (!issue(s)) return;
      ask_disk = take_result(s);
    }
  } catch (...) {
    note_failure(s);
  }
  retire(s);
}

bool SpillEngine::begin(Slot& s) {
  const Block& b = blocks_[static_cast<std::size_t>(s.block)];
  const bool whole = s.begin == 0 && s.end >= b.valid;
  if (b.lost && !(s.Request::write && whole)) {
    const std::lock_guard lock(mutex_);
    fail(ExitCode::storage, "{} cannot be {}: the data to be written there was lost. {}", where(s),
         s.Request::write ? "written in part" : "read", losses_[s.block]);
  }
  return s.Request::write ? begin_write(s) : begin_read(s);
}

bool SpillEngine::begin_read(Slot& s) {
  const std::int64_t valid = blocks_[static_cast<std::size_t>(s.block)].valid;
  if (s.begin >= valid) {  // nobody has written here
    std::memset(s.caller, 0, static_cast<std::size_t>(s.end - s.begin));
    return false;
  }
  const std::int64_t bytes = round_up(valid, alignment_.offset);
  s.staged = s.begin > 0 || s.end < bytes || !suits(s.caller);
  return ask(s, Step::read, s.staged ? s.staging : s.caller, bytes);
}

bool SpillEngine::begin_write(Slot& s) {
  const std::int64_t valid = blocks_[static_cast<std::size_t>(s.block)].valid;
  if (s.begin == 0 && s.end >= valid) {
    s.valid = static_cast<std::uint32_t>(s.end);
    s.staged = s.cipher || s.end % alignment_.offset != 0 || !suits(s.caller);
    return store(s);
  }
  s.staged = true;
  if (valid > 0) return ask(s, Step::fetch, s.staging, round_up(valid, alignment_.offset));
  patch(s);
  return store(s);
}

/// Puts the caller's part into the block that lies in staging, over what was there.
void SpillEngine::patch(Slot& s) {
  const std::int64_t valid = blocks_[static_cast<std::size_t>(s.block)].valid;
  if (s.begin > valid) std::memset(s.staging + valid, 0, static_cast<std::size_t>(s.begin - valid));
  std::memcpy(s.staging + s.begin, s.caller, static_cast<std::size_t>(s.end - s.begin));
  s.valid = static_cast<std::uint32_t>(std::max(valid, s.end));
}

/// Hashes and writes the block's s.valid bytes, which lie in staging after a patch, else with the caller.
bool SpillEngine::store(Slot& s) {
  const bool patched = s.begin > 0 || s.valid > s.end;
  const std::byte* from = patched ? s.staging : s.caller;
  const std::int64_t bytes = round_up(s.valid, alignment_.offset);
  s.hash = hash_bytes(from, s.valid);
  if (!s.staged) return ask(s, Step::store, s.caller, bytes);
  const std::int64_t sector = s.block * (options_.block_bytes / SectorCipher::sector), whole = s.valid / SectorCipher::sector;
  const std::int64_t kept = s.cipher ? whole * SectorCipher::sector : 0;  // these are encrypted from where they lie
  if (s.cipher) s.cipher->encrypt(sector, from, s.staging, kept);
  if (!patched) std::memcpy(s.staging + kept, from + kept, static_cast<std::size_t>(s.valid - kept));
  std::memset(s.staging + s.valid, 0, static_cast<std::size_t>(bytes - s.valid));
  if (s.cipher) s.cipher->encrypt(sector + whole, s.staging + kept, s.staging + kept, bytes - kept);
  return ask(s, Step::store, s.staging, bytes);
}

bool SpillEngine::suits(const std::byte* memory) const {
  return reinterpret_cast<std::uintptr_t>(memory) % static_cast<std::uintptr_t>(alignment_.memory) == 0;
}

bool SpillEngine::ask(Slot& s, Step step, std::byte* memory, std::int64_t bytes) {
  const auto files = static_cast<std::int64_t>(files_.size());
  s.step = step;
  s.Request::write = step == Step::store;
  s.file = static_cast<int>(s.block % files);
  s.offset = s.block / files * options_.block_bytes;
  s.memory = memory;
  s.Request::bytes = bytes;
  s.refusals = 0;
  return true;
}

/// What the disk has answered: an error, a part, or all.
bool SpillEngine::take_result(Slot& s) {
  const auto action = [&] { return s.Request::write ? "write" : "read"; };
  if (s.result == -EINTR) return true;
  if (s.result == -EAGAIN && ++s.refusals < most_refusals) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return true;
  }
  const std::string& path = files_[static_cast<std::size_t>(s.file)].path();
  if (s.result < 0 || (s.result == 0 && s.Request::write)) {
    const auto reason = static_cast<int>(s.result < 0 ? -s.result : EIO);
    fail_storage(fmt::format("{} {} at byte {} for {}", action(), human_bytes(static_cast<double>(s.Request::bytes)), s.offset, where(s)),
                 path, reason);
  }
  if (s.result == 0)
    fail(ExitCode::storage, "{}: it ends at byte {}, in the middle of {}. Something has truncated it: resume from the last checkpoint.",
         path, s.offset, where(s));
  if (s.result == s.Request::bytes) return go_on(s);
  const std::int64_t moved = s.result / alignment_.offset * alignment_.offset;  // a direct transfer goes on where it may begin
  s.offset += moved, s.memory += moved, s.Request::bytes -= moved;
  s.refusals = 0;
  return true;
}

/// The disk has done all of the step.
bool SpillEngine::go_on(Slot& s) {
  Block& b = blocks_[static_cast<std::size_t>(s.block)];
  if (s.step == Step::store) {
    b = {.hash = s.hash, .valid = s.valid, .lost = false};
    return false;
  }
  take_block(s, s.staged ? s.staging : s.caller);
  if (s.step == Step::fetch) {
    patch(s);
    return store(s);
  }
  const auto valid = static_cast<std::int64_t>(b.valid), end = std::min(s.end, valid);
  if (s.staged) std::memcpy(s.caller, s.staging + s.begin, static_cast<std::size_t>(end - s.begin));
  if (s.end > valid) std::memset(s.caller + (valid - s.begin), 0, static_cast<std::size_t>(s.end - valid));
  return false;
}

/// Decrypts and verifies what came from the disk.
void SpillEngine::take_block(Slot& s, std::byte* from) {
  const Block& b = blocks_[static_cast<std::size_t>(s.block)];
  const std::int64_t bytes = round_up(b.valid, alignment_.offset);
  if (s.cipher) s.cipher->decrypt(s.block * (options_.block_bytes / SectorCipher::sector), from, from, bytes);
  const Hash128 found = hash_bytes(from, b.valid);
  if (found == b.hash) return;
  const auto files = static_cast<std::int64_t>(files_.size());
  fail(ExitCode::storage,
       "{}: the {} at byte {}, {}, are not what was written there (XXH3 {}, was {}). A disk, its controller or memory has changed them. "
       "Resume from the last checkpoint, and check this disk before you use it again.",
       files_[static_cast<std::size_t>(s.file)].path(), human_bytes(b.valid), s.block / files * options_.block_bytes, where(s), found.hex(),
       b.hash.hex());
}

/// "layers.3.adam_m from its byte 1048576": the caller's words for the part of the block.
std::string SpillEngine::where(const Slot& s) const {
  return fmt::format("{} from its byte {}", s.transfer->unit, s.block * options_.block_bytes + s.begin - s.transfer->offset);
}

/// The block's error is the transfer's, if none before it has one. What a failed write leaves in the file is nobody's.
void SpillEngine::note_failure(Slot& s) {
  const std::lock_guard lock(mutex_);
  Transfer& t = *s.transfer;
  if (!t.error || s.block < t.error_block) t.error = std::current_exception(), t.error_block = s.block;
  if (!t.write) return;
  Block& b = blocks_[static_cast<std::size_t>(s.block)];
  b.valid = std::max(b.valid, static_cast<std::uint32_t>(s.end));  // what has to be written anew
  if (std::exchange(b.lost, true)) return;
  try {
    throw;
  } catch (const std::exception& e) {
    losses_[s.block] = e.what();
  }
}

}  // namespace tessera::io
