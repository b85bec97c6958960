// tessera runs compare: runs side by side.
#pragma once
#include "commands/command.hpp"

namespace tessera {

void add_runs_compare(const Command& runs);

}  // namespace tessera
