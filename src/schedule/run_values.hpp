// Values of a run: what it carries from step to step beside the state of its parameters. A value is a field of kernels::RunValues, which
// tasks read and write, and a row here: it is initialised, saved, loaded and shown by its name.
#pragma once
#include <vector>

#include "deck/deck.hpp"
#include "schedule/task.hpp"

namespace tessera {

/// Those of a deck's runs, in the buffer of kernels::RunValues.
std::vector<RunValue> run_values(const Deck& deck, int buffer);

}  // namespace tessera
