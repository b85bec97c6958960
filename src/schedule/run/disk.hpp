// A rank's disk tier as tasks and state see it: addresses at which nothing is to be read or written, each a place in a spill file.
#pragma once
#include <atomic>

#include "io/nvme/spill_file.hpp"
#include "schedule/task.hpp"

namespace tessera {

class Disk {
 public:
  /// Reserves addresses for all of it. Throws Error(storage) as SpillFile does; a disk that does not answer for `patience` seconds is lost,
  /// which is said after a tenth of them, and again.
  Disk(const io::SpillOptions& options, double patience);
  /// Overwrites what was written, where the options say so and no error is on its way.
  ~Disk();
  Disk(const Disk&) = delete;
  Disk& operator=(const Disk&) = delete;

  std::byte* base() const { return base_; }
  /// Whether an address is one of these.
  bool holds(const void* address) const;
  /// Whether anything was written; before, all reads as zeros.
  bool written() const { return written_; }

  struct Move {
    std::byte* to;
    const std::byte* from;
    std::int64_t bytes;
  };
  /// Back when all have ended; the first error is thrown. `unit` is for messages.
  void read(std::span<const Move> moves, const std::string& unit);
  void write(std::span<const Move> moves, const std::string& unit);

  /// What the disks are asked for now, for whoever looks for a rank that does not go on; empty where it is nothing.
  std::string under_way() const;
  /// "io_uring, depth 8, O_DIRECT, registered buffers"
  std::string how() const { return file_.how(); }

 private:
  void await(const io::SpillFile::Ticket& ticket);
  template <class Begin>
  void move_all(std::span<const Move> moves, Begin begin);

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  double patience_;
  std::atomic<bool> lost_ = false;
  io::SpillFile file_;
  std::atomic<bool> written_ = false;
};

/// Whether anything of a training run lies on disks.
bool uses_disks(const Deck& deck);

/// How the deck wants the file of a rank's disk tier; without its size, and without memory of its own.
io::SpillOptions spill_options(const Deck& deck, int rank);

}  // namespace tessera
