// The memory reader: lifetimes of buffers become fixed offsets in one arena a tier.
#pragma once
#include <array>

#include "schedule/task.hpp"

namespace tessera {

/// Buffers begin on a page.
inline constexpr std::int64_t plan_alignment = 4096;

struct MemoryPlan {
  std::vector<std::int64_t> offset;              ///< of each buffer in its tier's arena
  std::array<std::int64_t, tier_count> bytes{};  ///< of each arena
  /// Bytes by tier and category. Buffers that live at different times share bytes, so activations, gathered units and workspace are counted
  /// where they are placed: a category's share of the arena's transient part is what it alone would need at its worst moment.
  std::array<std::array<std::int64_t, category_count>, tier_count> by_category{};
  std::array<std::int64_t, tier_count> persistent{};  ///< bytes that live through the whole run
  std::array<std::int64_t, tier_count> transient{};   ///< bytes shared by buffers that come and go
};

/// First fit by falling size; deterministic. Persistent buffers lie below transient ones.
MemoryPlan place(const Schedule& schedule);

/// The table for people: tiers, categories, bytes.
std::string print_memory(const Schedule& schedule, const MemoryPlan& plan);

}  // namespace tessera
