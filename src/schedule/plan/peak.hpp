// When a tier holds most, and what it holds then.
#pragma once
#include "schedule/plan/memory_plan.hpp"

namespace tessera {

/// Bytes of a tier that live at each moment, those that live through the whole run included.
std::vector<std::int64_t> live_bytes(const Schedule& schedule, const Lives& lives, Tier tier);

struct Peak {
  std::string section, task;  ///< empty where nothing comes and goes in the tier
  std::int64_t bytes = 0;     ///< live at that task, persistent buffers included
  struct Part {
    Category category;
    std::int64_t bytes = 0;
    int buffers = 0;
    std::string largest;  ///< name of the largest of them
    std::int64_t largest_bytes = 0;
  };
  std::vector<Part> parts;  ///< largest first
};
/// Of the buffers that live at one task the bytes are largest; the first such task.
Peak peak_of(const Schedule& schedule, Tier tier);

/// For people: a line of the moment, then one a category.
std::string print_peak(const Peak& peak, Tier tier);

}  // namespace tessera
