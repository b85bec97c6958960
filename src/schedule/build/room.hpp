// Which products leave multiprocessors of a GPU to gathers and reductions that run beside them, and how many.
#pragma once
#include "schedule/build/request.hpp"
#include "schedule/task.hpp"

namespace tessera {

/// Blocks that fill the links of a node, of which NCCL itself takes up to 32; and half of them, which leave more to products and take twice
/// as long where links are fast.
inline constexpr int most_collective_blocks = 16, fewest_collective_blocks = 8;

/// Sets Schedule::collective_blocks and RunPass::beside of a schedule on a GPU. A run has no profile of its machine, so the guess of what
/// runs beside a collective goes by bytes and FLOPs alone: a collective begins where it stands in the list, and lasts as long as products
/// of so many FLOPs. Of both numbers of blocks the one with the shorter step is taken; stages of a pipeline share communicators and take
/// the larger. In reproducible runs no product leaves room: the same product must have the same algorithm on any layout.
void leave_room(Schedule& schedule, const BuildRequest& request);

/// Takes that back: as the fastest collectives and products would have it.
void leave_no_room(Schedule& schedule);

}  // namespace tessera
