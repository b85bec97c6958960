// Losses of tokens by what the tokens belong to: a file of a mixture, or a text of a task.
#pragma once
#include "kernels/context.hpp"
#include "kernels/fixed/fixed_sum.hpp"

namespace tessera::kernels {

/// Of a group: int64 alone, so that totals of ranks meet in one all-reduce.
struct GroupTotals {
  FixedSum loss;             ///< sum over its targets
  std::int64_t targets = 0;  ///< those of its tokens that count
};
inline constexpr std::int64_t group_sums = 5;  ///< int64 of a GroupTotals

/// The tokens of a micro-batch join the totals of their groups, each by itself: sums do not depend on what of a group lies where. A weight
/// of 0 is a micro-batch that only keeps ranks in step: nothing of it is read. Tokens without a target, and losses that are no number, add
/// nothing.
struct AddGroupLosses {
  GroupTotals* totals = nullptr;          ///< (groups)
  const float* losses = nullptr;          ///< (M)
  const std::int32_t* targets = nullptr;  ///< (M), or no_target
  const std::int32_t* members = nullptr;  ///< (M): the group of each token; of a number that no group has, it counts in none
  const double* weight = nullptr;
  std::int64_t M = 0, groups = 0;
};
TESSERA_OP(add_group_losses, (const Context& context, const AddGroupLosses& arguments), (context, arguments))

}  // namespace tessera::kernels
