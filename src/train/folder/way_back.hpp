// Where a run goes back to by itself, and what it leaves out there: of spikes a function of the deck and the steps. So runs that were
// stopped, killed, or could not save one of their checkpoints, make the same of the same data.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "deck/deck.hpp"
#include "io/checkpoint/checkpoint.hpp"

namespace tessera {

/// A way back begins at `step`; checkpoints are due every so many steps (0: never). Without one from beyond the step that it had reached
/// before the run gets no further.
void count_way(io::Ways& ways, std::int64_t step, std::int64_t every);

/// The step that a run goes back to from a spike of step `step`, which `ways` has counted: of those at which checkpoint.every asks for a
/// save the newest before it, and one further back each time in a row, as far as checkpoint.keep keeps them; before the first of them
/// `begin`, where the run began.
std::int64_t step_to_go_back_to(const CheckpointKeys& keys, std::int64_t begin, std::int64_t step, const io::Ways& ways);

/// Checkpoints from which the run comes to `target` as it did before, the best first, and behind them those from which it does not, since
/// the way to it would be long or nothing stands before it. Empty: from its new weights. Only what the run has come through before `step`.
std::vector<std::string> checkpoints_for(const std::string& checkpoints, const io::Lineage& lineage, std::int64_t target, std::int64_t step,
                                         std::int64_t every);

/// All that a run leaves out on its way along these lines.
std::vector<io::LeftOut> left_out_along(const io::Lineage& lineage);
/// Samples left out after `step` steps; 0 where the list has none for it, and what its state says holds.
std::int64_t left_out_by(const std::vector<io::LeftOut>& along, std::int64_t step);
/// What a line that begins after `begin` steps leaves out: what was left out from there on before `until`, and `more` after that.
std::vector<io::LeftOut> left_out_from(const std::vector<io::LeftOut>& along, std::int64_t begin, std::int64_t until,
                                       const std::vector<io::LeftOut>& more);

}  // namespace tessera
