// Signals that ask a run to save and leave. No thread that computes is ever interrupted by one: a thread of their own waits for them and
// sets a flag, and the trainer looks at it between steps. A handler would not do. oneDNN's fp32 product on AVX processors keeps its packed
// rows in a block of the heap and runs with the stack pointer at that block's first byte (seen in 2.6.3), so the frame of any handler
// overwrites what lies before the block.
#pragma once

namespace tessera {

/// Blocks SIGTERM, SIGINT, SIGUSR1 and SIGHUP in this thread and in all that it starts: what comes waits. A SIGHUP that the process was
/// started to ignore (nohup) stays ignored. The program's first instruction: it may stand before the C++ library is ready.
void hold_stop_signals() noexcept;
/// For a command that has nothing to save: they do what they do by default, also those that came meanwhile.
void release_stop_signals();

/// Holds them and waits for them on a thread of its own, one a process. Call it before other threads exist: MPI's transports and OpenMP
/// start some. A process that runs again calls it again: what has come is still a request, until somebody takes it. A signal sent to a
/// single thread is not seen. From here on they are requests to leave. One that nobody looks at (take_stop_signals) for five seconds ends
/// the process with status 75: MPI is being started, maybe for ever, and there is nothing to save. A second SIGINT ends the process at once
/// with status 130: two times Ctrl-C always works.
void watch_stop_signals();
/// From here on the run looks at stop_requested().
void take_stop_signals();
/// Whether one of them has arrived.
bool stop_requested();
/// Its number, 0 when none has arrived. Of several, the first.
int stop_signal();
/// Throws Error(interrupted) when one of them has arrived. For the start of a run, in parts that ranks do together: before its first step
/// it has nothing to save.
void leave_if_stopped();
/// "SIGTERM", "SIGINT", "SIGUSR1", "SIGHUP".
const char* signal_name(int signal);

}  // namespace tessera
