// The control block of a shared-memory communicator: ranks meet in numbered rounds and see what each of them calls.
#pragma once
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "topology/communicators/communicator.hpp"
#include "topology/node.hpp"
#include "topology/shared/shared_block.hpp"

namespace tessera {

enum class CallKind : std::uint8_t { all_gather, reduce_scatter, all_reduce, broadcast, all_to_all, rotate, barrier };
std::string_view name_of(CallKind);

/// What a rank calls: the peers check that it is what they call, and read where its buffer is.
struct RoundCall {
  CallKind kind = CallKind::barrier;
  DType dtype = DType::f32;
  Reduction reduction = Reduction::sum;
  std::int32_t root = 0;
  std::int64_t count = 0, stride = 0;  ///< stride: of a rotate, how many ranks further
  Node::Location location = {};        ///< arena -1: not where the peers could read it
  bool matches(const RoundCall& other) const;
  std::string describe() const;
};

/// A round is complete when all ranks have arrived in it. What a rank writes for round k (its call, its window) is read by the others after
/// they have passed round k, and stays until the rank has passed round k + 1: so two copies, by parity of the round, need no second
/// round.
///
/// All ranks count their arrivals in one word. The last to arrive wakes the others, if any sleeps, with one system call: with more ranks
/// than cores nobody spins while others have work.
class Rounds {
 public:
  static std::size_t bytes(int size, std::size_t window_bytes);
  /// `block` is a zeroed block of bytes(...) that all members map. `members` are their local ranks on the node.
  Rounds(Mapping block, std::size_t window_bytes, const Node& node, std::vector<int> members, int rank, std::string label,
         double timeout_seconds);

  int rank() const { return rank_; }
  int size() const { return static_cast<int>(members_.size()); }

  /// Begins a collective: the calls of later rounds are compared with this one.
  void begin(const RoundCall& call);
  /// This rank's window for the coming round; a peer's for the round that was just passed. window_bytes() each.
  std::byte* window() { return window_of(rank_, round_ + 1); }
  const std::byte* window(int peer) const { return window_of(peer, round_); }
  std::size_t window_bytes() const { return window_bytes_; }
  /// Arrives in the coming round and waits for the others. Throws Error(lost) that names who is missing after the time limit or when
  /// a missing rank's process has ended, and Error(internal) when the ranks call different things.
  void pass();
  /// From any thread: whoever waits in pass(), now or later, throws Error(lost).
  void abort() { aborted_->store(true); }
  /// What a peer called in the round just passed.
  const RoundCall& call(int peer) const { return seat(peer).calls[round_ & 1]; }
  /// Where a peer's buffer stands in this process.
  const std::byte* resolve(int peer) const;

 private:
  static constexpr std::size_t line = 128;  // two cache lines: neighbours are fetched in pairs
  struct alignas(line) Head {
    alignas(line) std::atomic<std::uint32_t> arrived;   // arrivals of all ranks in all rounds
    alignas(line) std::atomic<std::uint32_t> sleepers;  // ranks that must be woken
  };
  struct alignas(line) Seat {
    std::atomic<std::uint32_t> round;  // the last round that this rank has arrived in
    RoundCall calls[2];
  };

  Head& head() const { return *reinterpret_cast<Head*>(block_.data()); }
  Seat& seat(int rank) const { return reinterpret_cast<Seat*>(block_.data() + sizeof(Head))[rank]; }
  std::byte* window_of(int rank, std::uint32_t round) const;
  void sleep_until_complete(std::uint32_t target);
  void check_waiting(double waited_seconds) const;
  /// The same words on all ranks.
  std::string what() const { return fmt::format("{} ({})", call_.describe(), where()); }
  std::string where() const;

  Mapping block_;
  std::size_t window_bytes_;
  const Node& node_;
  std::vector<int> members_;
  int rank_;
  std::string label_;
  double timeout_seconds_;
  int spins_ = 0;
  RoundCall call_;
  std::uint32_t round_ = 0;
  std::int64_t calls_ = 0;
  std::unique_ptr<std::atomic<bool>> aborted_ = std::make_unique<std::atomic<bool>>(false);  ///< movable
};

}  // namespace tessera
