// Whether the phases of a run have one state: what one leaves, the next one finds where it looks for it.
#pragma once
#include "schedule/plan/run_plan.hpp"

namespace tessera {

/// The same tensors, by the same boxes, lie at the same bytes in both plans of a rank, and the run's values are the same; of what ranks
/// have of their own (Held::own) as far as both have it. Throws Error(internal) that names the first difference.
void require_same_places(const RunPlan& first, const RunPlan& other);

}  // namespace tessera
