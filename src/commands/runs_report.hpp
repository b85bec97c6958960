// tessera runs report: a page of a run.
#pragma once
#include "commands/command.hpp"

namespace tessera {

void add_runs_report(const Command& runs);

}  // namespace tessera
