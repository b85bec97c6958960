#include "base/check.hpp"
#include "kernels/group_losses/group_losses.hpp"

namespace tessera::kernels::host {

void add_group_losses(const Context&, const AddGroupLosses& p) {
  static_assert(sizeof(GroupTotals) == group_sums * sizeof(std::int64_t));
  TESSERA_REQUIRE(p.M >= 0 && p.groups > 0, "losses of {} tokens in {} groups", p.M, p.groups);
  for (std::int64_t t = 0; t < p.M; ++t) {
    const std::int32_t group = p.members[t];
    if (p.weights[t] == 0 || group < 0 || group >= p.groups) continue;
    GroupTotals& totals = p.totals[group];
    if (totals.loss.add(p.losses[t])) totals.weight.add(p.weights[t]), ++totals.targets;
  }
}

}  // namespace tessera::kernels::host
