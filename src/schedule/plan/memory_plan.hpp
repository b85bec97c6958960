// The memory reader: lifetimes of buffers become fixed offsets in one arena a tier.
#pragma once
#include <array>

#include "schedule/plan/taken_addresses.hpp"
#include "schedule/task.hpp"

namespace tessera {

struct MemoryPlan {
  std::vector<std::int64_t> offset;              ///< of each buffer in its tier's arena
  std::array<std::int64_t, tier_count> bytes{};  ///< of each arena
  /// Bytes by tier and category. Buffers that live at different times share bytes, so activations, gathered units and workspace are counted
  /// where they are placed: a category's share of the arena's transient part is what it alone would need at its worst moment.
  std::array<std::array<std::int64_t, category_count>, tier_count> by_category{};
  std::array<std::int64_t, tier_count> state{};       ///< of persistent: those of Schedule::state, which lie first
  std::array<std::int64_t, tier_count> persistent{};  ///< bytes that live through the whole run
  std::array<std::int64_t, tier_count> transient{};   ///< bytes shared by buffers that come and go
};

/// Tasks are moments, counted through all sections.
std::int64_t moments_of(const Schedule& schedule);
/// Of each buffer, when it lives: in each section that uses it from the first use to the last, or in a program (Life).
using Lives = std::vector<std::vector<Moments>>;
Lives lives_of(const Schedule& schedule);
/// Of a buffer with what is lost to the alignment of the next.
std::int64_t placed_bytes(const Buffer& buffer);

/// What lives through the whole run: no plan needs less.
TierBytes kept_bytes(const Schedule& schedule);

/// First fit by falling size; deterministic. Persistent buffers lie below transient ones, and the state below all.
MemoryPlan place(const Schedule& schedule);

/// Bytes of each arena that tasks touch, or that are made, loaded and saved: those that were planned, or the plan is wrong.
TierBytes touched_bytes(const Schedule& schedule, const MemoryPlan& plan);

/// Of each tier the most that one of the plans needs.
void raise(TierBytes& most, const TierBytes& bytes);

/// The table for people: tiers, categories, bytes.
std::string print_memory(const Schedule& schedule, const MemoryPlan& plan);

}  // namespace tessera
