// What routers did in a step, as a user reads it.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "kernels/router/router.hpp"
#include "model/table/shape.hpp"

namespace tessera {

struct RouterFigures {
  double balance = 0;              ///< mean over layers with experts of the balancing loss: 1 where all experts have the same
  double z = 0;                    ///< mean over them and tokens of the squared log-sum-exp of logits
  std::int64_t dropped = 0;        ///< choices of all layers that found no room
  double dropped_share = 0;        ///< of all choices
  double most_loaded = 0;          ///< of any layer: an expert's choices over those that it would have if all had the same
  std::vector<std::int64_t> load;  ///< choices of each expert, over layers
};

/// `loads` (L,E) and totals of a step of so many tokens.
RouterFigures figures_of(const kernels::RouterTotals& totals, std::span<const std::int64_t> loads, const ModelShape& shape, double tokens);

}  // namespace tessera
