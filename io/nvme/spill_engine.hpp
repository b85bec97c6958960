// Behind SpillFile: blocks on their way between memory and disks.
//
// A transfer is cut into blocks. Each takes a slot, of which there are as many as requests may be with the disks; a worker takes it from
// step to step: hash, encrypt and write; or read, decrypt, verify and copy; or, for a part of a block, read, patch and write. With io_uring
// a slot waits in the kernel and any worker goes on with it; with threads its worker waits in the call.
#pragma once
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "base/hash.hpp"
#include "io/nvme/block_cipher.hpp"
#include "io/nvme/folder_file.hpp"
#include "io/nvme/spill_file.hpp"
#include "io/nvme/transport.hpp"

namespace tessera::io {

/// What a ticket holds. All but what the caller asked for belongs to the engine's mutex.
struct Transfer {
  bool write;
  std::int64_t offset, bytes;  // in the spill
  std::byte* memory;           // of a write it is only read
  std::string unit;
  std::int64_t next_block, end_block;  // not begun yet
  std::int64_t blocks_left;            // not ended yet
  std::exception_ptr error;            // of the first block that failed, in the file's order
  std::int64_t error_block = 0;
};

/// Anonymous memory, page by page.
class Pages {
 public:
  explicit Pages(std::size_t bytes);
  ~Pages();
  Pages(const Pages&) = delete;
  Pages& operator=(const Pages&) = delete;
  std::span<std::byte> all() const { return all_; }

 private:
  std::span<std::byte> all_;
};

class SpillEngine {
 public:
  explicit SpillEngine(const SpillOptions&);
  ~SpillEngine();
  SpillEngine(const SpillEngine&) = delete;
  SpillEngine& operator=(const SpillEngine&) = delete;

  std::int64_t bytes() const { return options_.bytes; }
  std::shared_ptr<Transfer> submit(bool write, std::int64_t offset, std::byte* memory, std::int64_t bytes, std::string unit);
  void wait(const Transfer&);
  bool ended(const Transfer&, double seconds = 0);
  void drain();
  std::vector<UnderWay> under_way();
  std::string how() const;
  void close();

  /// Of one block, in memory.
  struct Block {
    Hash128 hash;             // of what the caller gave
    std::uint32_t valid = 0;  // bytes at its start that were written; the rest reads as zeros
    bool lost = false;        // a write to it failed
  };

 private:
  enum class Step { read, fetch, store };  // fetch: before a write of a part

  /// A block under way, and the buffer through which it goes where memory or length do not suit the disk.
  struct Slot : Request {
    std::shared_ptr<Transfer> transfer;
    std::int64_t block = 0, begin = 0, end = 0;  // within the block
    std::byte* caller = nullptr;                 // memory of `begin`
    std::byte* staging = nullptr;
    std::optional<SectorCipher> cipher;
    Step step = Step::read;
    bool staged = false;
    Hash128 hash;             // of what is stored
    std::uint32_t valid = 0;  // what the block's will be
    int refusals = 0;         // EAGAIN, in a row
    double since = 0;         // when the disk was asked; 0: it is not
  };

  // spill_engine.cpp: who does what next.
  void make_slots(const CipherKey*);
  void start_workers();
  void stop_workers();
  void work();
  Slot* next_slot();
  bool issue(Slot&);
  void collect(std::unique_lock<std::mutex>&);
  void retire(Slot&);
  bool shares_block(const Transfer&) const;
  void overwrite_all();

  // block_steps.cpp: what happens to a block. True: the disk is to be asked.
  void advance(Slot&, bool begun);
  bool begin(Slot&);
  bool begin_read(Slot&);
  bool begin_write(Slot&);
  bool store(Slot&);
  bool ask(Slot&, Step, std::byte* memory, std::int64_t bytes);
  bool take_result(Slot&);
  bool go_on(Slot&);
  void take_block(Slot&, std::byte* from);
  void patch(Slot&);
  bool suits(const std::byte* memory) const;
  void note_failure(Slot&);
  std::string where(const Slot&) const;

  SpillOptions options_;
  std::vector<FolderFile> files_;
  std::vector<std::string> notes_;
  Alignment alignment_;
  std::vector<Block> blocks_;  // an entry belongs to the transfer that has the block under way
  std::optional<Pages> own_staging_;
  std::span<std::byte> staging_;
  std::unique_ptr<Transport> transport_;
  std::vector<Slot> slots_;

  std::mutex mutex_;
  std::condition_variable work_, ended_;
  std::list<std::shared_ptr<Transfer>> active_;    // not ended, in the order of their begin
  std::deque<std::shared_ptr<Transfer>> waiting_;  // with blocks that are not begun
  std::vector<Slot*> free_;
  std::deque<Slot*> answered_;                  // the disk has ended with these
  std::map<std::int64_t, std::string> losses_;  // why blocks were lost
  int asked_ = 0;                               // slots that collect() will give back
  bool collecting_ = false, stopping_ = false;
  std::vector<std::thread> workers_;
};

}  // namespace tessera::io
