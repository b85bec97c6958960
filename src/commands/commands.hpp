// Subcommands. A new one is a file that defines add_NAME and a row in TESSERA_COMMANDS.
#pragma once
#include <optional>
#include <string>

#include "commands/command.hpp"

namespace tessera {

// One row a command, in the order of the help page.
#define TESSERA_COMMANDS(row)                                                                                                     \
  row(tokenize) row(train) row(resume) row(supervise) row(ends) row(plan) row(report) row(preflight) row(import) row(consolidate) \
      row(generate) row(evaluate) row(inspect) row(verify) row(runs) row(deck) row(slurm) row(completion) row(version)

#define TESSERA_DECLARE_COMMAND(name) void add_##name(const Command& app);
TESSERA_COMMANDS(TESSERA_DECLARE_COMMAND)
#undef TESSERA_DECLARE_COMMAND

/// A command line that was read.
struct CommandLine {
  std::optional<int> status = {};  ///< what it asked for is done (help, version), or it was refused and that is said: the exit status
  Chosen chosen = {};
  bool trains = false;  ///< the command is `train` or `resume`
};

CommandLine read_command_line(int argc, const char* const* argv);

/// Program, compiler and library versions, one a line.
std::string version_text();

}  // namespace tessera
