// Signals that ask a run to save and leave. No thread that computes is ever interrupted by one: a thread of their own waits for them and
// sets a flag, and the trainer looks at it between steps. A handler would not do. oneDNN's fp32 product on AVX processors keeps its packed
// rows in a block of the heap and runs with the stack pointer at that block's first byte (seen in 2.6.3), so the frame of any handler
// overwrites what lies before the block.
#pragma once

namespace tessera {

/// Blocks SIGTERM, SIGINT and SIGUSR1 in this thread and in all that it starts, and waits for them on a thread of its own. Call it once,
/// before other threads exist: MPI's transports and OpenMP start some. A signal sent to a single thread is not seen.
/// Until take_stop_signals the signals do what they do by default: they end the process.
void watch_stop_signals();
/// From here on they are requests to save and leave. A second SIGINT ends the process at once with status 130: two times Ctrl-C always
/// works.
void take_stop_signals();
/// Whether one of them has arrived since.
bool stop_requested();
/// Its number, 0 when none has arrived. Of several, the first.
int stop_signal();
/// "SIGTERM", "SIGINT", "SIGUSR1".
const char* signal_name(int signal);

}  // namespace tessera
