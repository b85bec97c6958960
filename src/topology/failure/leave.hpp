// The end of a process whose threads cannot be unwound.
#pragma once
#include "base/check.hpp"

namespace tessera {

/// Waits until the launcher has read what this process wrote to its standard error: hydra throws away what is still in the pipe when it is
/// told to end the run, and the cause of the failure would be lost.
void drain_standard_error();

/// What was written is read, then the process ends. Nothing is unwound.
[[noreturn]] void leave_now(ExitCode code);

}  // namespace tessera
