// The end of a process whose threads cannot be unwound.
#pragma once
#include "base/check.hpp"

namespace tessera {

/// Waits until the launcher has read what this process wrote to its standard error: hydra throws away what is still in the pipe when it is
/// told to end the run, and the cause of the failure would be lost.
void drain_standard_error();

/// Tells MPICH's mpiexec that this process ends the run, and by which status; srun hears it by the status itself. To be called before a
/// process ends without MPI's goodbye: mpiexec notes status 1 when it sees the process's sockets close, and corrects that only where it
/// finds the process gone at once, which on a busy machine it is not. All ranks are ended by this.
void tell_launcher(int status) noexcept;
/// The same by a socket that launcher_socket() gave before, for a signal's handler. -1 tells nobody.
void tell_launcher(int status, int socket) noexcept;
int launcher_socket();

/// What was written is read, then the process ends, and the run with it. Nothing is unwound.
[[noreturn]] void leave_now(ExitCode code);

}  // namespace tessera
