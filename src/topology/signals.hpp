// Signals that ask a run to save and leave. The handlers only set a flag; the trainer looks at it between steps.
#pragma once

namespace tessera {

/// Takes SIGTERM, SIGINT and SIGUSR1. A second SIGINT ends the process at once with status 130: two times Ctrl-C always works.
void install_signal_handlers();
/// Whether one of them has arrived.
bool stop_requested();
/// Its number, 0 when none has arrived. Of several, the first.
int stop_signal();
/// "SIGTERM", "SIGINT", "SIGUSR1".
const char* signal_name(int signal);

}  // namespace tessera
