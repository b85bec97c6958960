// Losses of tokens by what the tokens belong to: a file of a mixture, or a text of a task.
#pragma once
#include "kernels/context.hpp"
#include "kernels/fixed/fixed_sum.hpp"

namespace tessera::kernels {

/// Of a group: int64 alone, so that totals of ranks meet in one all-reduce.
struct GroupTotals {
  FixedSum loss, weight;     ///< sums over its targets
  std::int64_t targets = 0;  ///< those of its tokens that count
};
inline constexpr std::int64_t group_sums = 9;  ///< int64 of a GroupTotals

/// The tokens of a micro-batch join the totals of their groups, each by itself: sums do not depend on what of a group lies where. Tokens of
/// weight 0, and losses that are no number, add nothing.
struct AddGroupLosses {
  GroupTotals* totals = nullptr;          ///< (groups)
  const float* losses = nullptr;          ///< (M), with their weights
  const float* weights = nullptr;         ///< (M)
  const std::int32_t* members = nullptr;  ///< (M): the group of each token; of a number that no group has, it counts in none
  std::int64_t M = 0, groups = 0;
};
TESSERA_OP(add_group_losses, (const Context& context, const AddGroupLosses& arguments), (context, arguments))

}  // namespace tessera::kernels
