// All that is known of a rank's run before it begins: built and placed once, and handed to whoever needs it.
#pragma once
#include "schedule/build/builder.hpp"
#include "schedule/plan/memory_plan.hpp"

namespace tessera {

struct RunPlan {
  BuildRequest request;
  Schedule schedule;
  MemoryPlan memory;

  const Layout& layout() const { return request.layout; }
};

inline RunPlan plan_run(const BuildRequest& request) {
  Schedule schedule = build_schedule(request);
  MemoryPlan memory = place(schedule);
  return {.request = request, .schedule = std::move(schedule), .memory = std::move(memory)};
}

}  // namespace tessera
