// The program from its command line to its exit status.
#pragma once

namespace tessera {

/// Reads the command line, runs the chosen command, turns errors into exit statuses. It may be called again in the same process once it has
/// returned, where log_anew() and forget_end_report() have been called between.
int run_program(int argc, char** argv);

}  // namespace tessera
