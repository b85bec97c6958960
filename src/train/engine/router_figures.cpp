#include "train/engine/router_figures.hpp"

#include <algorithm>

namespace tessera {

RouterFigures figures_of(const kernels::RouterTotals& totals, std::span<const std::int64_t> loads, const ModelShape& shape, double tokens) {
  const auto L = static_cast<double>(shape.expert_layers()), E = static_cast<double>(shape.router.E),
             k = static_cast<double>(shape.router.k);
  RouterFigures f{.balance = totals.balance.value() / (L * tokens),
                  .z = totals.z.value() / (L * tokens),
                  .dropped = totals.dropped,
                  .dropped_share = static_cast<double>(totals.dropped) / (L * tokens * k),
                  .most_loaded = 0,
                  .load = std::vector<std::int64_t>(static_cast<std::size_t>(shape.router.E), 0)};
  for (std::size_t i = 0; i < loads.size(); ++i) {
    f.load[i % f.load.size()] += loads[i];
    f.most_loaded = std::max(f.most_loaded, static_cast<double>(loads[i]) * E / (tokens * k));
  }
  return f;
}

}  // namespace tessera
