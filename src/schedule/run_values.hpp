// Values of a run: what it carries from step to step beside the state of its parameters. A value is a field of kernels::RunValues or a part
// of another buffer, which tasks read and write, and a row here: it is initialised, saved, loaded and shown by its name.
#pragma once
#include <vector>

#include "deck/deck.hpp"
#include "model/table/fp8.hpp"
#include "schedule/task.hpp"

namespace tessera {

/// Those of a deck's runs, in the buffers of a schedule: "run" of kernels::RunValues, "fp8_history" of histories.
std::vector<RunValue> run_values(const Deck& deck, const Fp8Shape& fp8, const Schedule& schedule);

}  // namespace tessera
