// Compiles a request into a schedule.
#pragma once
#include "schedule/build/request.hpp"
#include "schedule/task.hpp"

namespace tessera {

/// Names of persistent buffers: "parameters.UNIT", "master.UNIT", "GROUP.UNIT" of each group of the optimizer's state, "gradients.UNIT",
/// "tokens", "targets", "token_groups" and "group_losses" (where losses of groups are summed apart), "positions" (where the model has
/// learned ones), "document_starts" (where documents are masked), "weights", "rope", "scalars", "inputs", "router" (with experts),
/// "update", "report"; of a text "prompt", "token" (id, position), "logits" or "likeliest", "keys.SEGMENT", "values.SEGMENT".
Schedule build_schedule(const BuildRequest& request);

}  // namespace tessera
