// The disk tier of one rank and purpose: bytes that memory has no room for, in files that nobody else reads and that nothing outlives.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace tessera::io {

/// How a spill file is made. block_bytes, queue_depth and threads are DeepSpeed's aio.block_size, queue_depth and intra_op_parallelism.
struct SpillOptions {
  std::vector<std::string> folders;          ///< one file in each; blocks go to them in turn
  std::string purpose;                       ///< for messages: "optimizer state, rank 3"
  std::int64_t bytes = 0;                    ///< how much it holds, reserved at once
  std::int64_t block_bytes = 1 << 20;        ///< of one request, one checksum and one stripe; a multiple of 4096, at most 1 GiB
  int queue_depth = 8;                       ///< requests that the disks have at a time; each thread has one more in its hands
  int threads = 1;                           ///< that hash, encrypt and verify; without io_uring there are queue_depth of them
  bool encrypt = false;                      ///< AES-256-XTS under a random key that no file holds
  bool wipe = false;                         ///< close() overwrites what was written
  std::span<std::byte> staging = {};         ///< staging_bytes() of memory on a page that the engine works in; empty: it takes its own
  std::vector<std::span<std::byte>> memory;  ///< where most transfers come from and go to; registered with the kernel where it allows that
};

/// Memory that the engine works in: a block for each request and thread.
std::int64_t staging_bytes(const SpillOptions&);
/// Host memory that a spill file takes beside the caller's, all of it when it is made.
std::int64_t spill_memory_bytes(const SpillOptions&);

/// A request that a disk has, or the thread that asks it.
struct UnderWay {
  bool write;
  std::string file, unit;      ///< unit: the caller's name of what is moved
  std::int64_t offset, bytes;  ///< in the file
  double seconds;              ///< since it was asked
  /// "reads 1.00 MiB at byte 3145728 of FILE for UNIT, for 12.3 s"
  std::string text() const;
};

class SpillEngine;
struct Transfer;

/// Holds `bytes` bytes, at first zeros. Reads give what was written last, verified block by block against checksums kept in memory, or
/// fail. Whole blocks in memory that direct transfers accept (4096 does) move without a copy; what is cut otherwise passes through a
/// buffer, and a write of part of a block reads the block first.
///
/// All functions may be called by any thread at any time. Errors are Error(storage): file, offset, unit, reason and what to do.
class SpillFile {
 public:
  /// A transfer under way. The memory must stay until wait() has returned or thrown; so must what is written stay unchanged.
  using Ticket = std::shared_ptr<Transfer>;

  /// Makes and reserves the files. Removes what crashed runs left in the folders, where files could not be made without a name.
  explicit SpillFile(const SpillOptions&);
  /// Waits for what the disks have and drops the rest; overwrites nothing. A failure that nobody waited for is lost.
  ~SpillFile();
  SpillFile(SpillFile&&) noexcept;
  SpillFile& operator=(SpillFile&&) noexcept;

  std::int64_t bytes() const;
  /// Returns at once, unless a transfer under way shares a block and one of the two writes: then when that one has ended.
  Ticket read(std::int64_t offset, std::span<std::byte> to, std::string unit);
  Ticket write(std::int64_t offset, std::span<const std::byte> from, std::string unit);
  /// Until the transfer has ended; throws its first error. The range of a write that failed cannot be read until it is written again.
  void wait(const Ticket&) const;
  bool ended(const Ticket&) const;
  /// The same, after at most so many seconds.
  bool ended_within(const Ticket&, double seconds) const;
  /// Until all transfers have ended; throws nothing of theirs.
  void drain() const;

  /// What the disks are asked for now, the longest first.
  std::vector<UnderWay> under_way() const;
  /// "io_uring, depth 8, O_DIRECT, registered buffers", and after a colon what the system refused.
  std::string how() const;

  /// Waits for all, overwrites if asked to, closes. The destructor does the same without overwriting.
  void close();
  /// Leaves everything as it is, for good: of a disk that does not answer, before the process ends.
  void abandon() noexcept;

 private:
  std::unique_ptr<SpillEngine> engine_;
};

}  // namespace tessera::io
