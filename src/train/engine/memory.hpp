// A rank's memory as it was planned: an arena a tier, and where the buffers of the schedule lie in them.
#pragma once
#include <array>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "schedule/plan/run_plan.hpp"
#include "schedule/run/communicators.hpp"
#include "schedule/run/disk.hpp"

namespace tessera {

class RankMemory {
 public:
  /// Allocates `room`, and makes memory known to those who read it from other ranks: `node` (null: none) and `communicators`. Both must
  /// outlive it, and so must the plan, which needs no more.
  RankMemory(const RunPlan& plan, const TierBytes& room, Node* node, const Communicators& communicators);
  ~RankMemory();
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  /// The plan has become another one whose state lies in the same places, as far as both have it: zeroes what lies from there on.
  void clear_from(const TierBytes& first) const;

  std::byte* address(int buffer, std::int64_t offset = 0) const;
  std::byte* address(const Use& use) const { return address(use.buffer, use.offset); }
  /// The buffer that the host writes or reads in place of one in a GPU's memory: its twin, or the buffer itself where the host reaches it.
  int host_side(const std::string& buffer) const;
  /// Whether the host reaches the buffer's bytes.
  bool on_host(int buffer) const;
  bool on_disk(int buffer) const { return plan_.schedule.buffers[static_cast<std::size_t>(buffer)].tier == Tier::nvme; }
  /// Between any tiers, but from disk to disk; back when it is done.
  void copy(void* to, const void* from, std::int64_t bytes) const;
  /// Null where nothing is planned for a disk.
  Disk* disk() const { return disk_.get(); }
  std::array<std::byte*, tier_count> bases() const;
  const Arena& arena(Tier tier) const { return arenas_[static_cast<std::size_t>(tier)]; }

 private:
  void make_disk();
  const std::string& buffer_at(const void* address) const;
  const RunPlan& plan_;
  bool on_gpu_;  ///< else tier device is memory of the host too
  Node* node_;
  std::array<Arena, tier_count> arenas_;
  std::unique_ptr<Disk> disk_;
  const Arena* shared_ = nullptr;           ///< what the ranks of a node map from each other
  std::list<RegisteredMemory> registered_;  ///< the device's arena, with each communicator
};

}  // namespace tessera
