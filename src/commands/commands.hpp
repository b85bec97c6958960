// Subcommands. A new one is a file that defines add_NAME and a row in TESSERA_COMMANDS.
#pragma once
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

namespace tessera {

/// What a command line asked for; returns the exit status. Commands start Kokkos and MPI themselves, so that those which need neither run
/// on a login node.
/// Takes numbers from `least` to `most` and no NaN; the name of the range stands in the help.
inline CLI::Validator number_between(double least, double most) {
  return {[least, most](std::string& text) {
            double value = 0;
            return CLI::detail::lexical_cast(text, value) && value >= least && value <= most
                       ? std::string()
                       : fmt::format("{} is not a number from {} to {}", text, least, most);
          },
          fmt::format("{} to {}", least, most)};
}

/// --worker-memory: into `bytes`, which outlives the parsing. `who`: what may take so much.
inline CLI::Option* add_worker_memory(CLI::App& command, std::int64_t& bytes, const std::string& who) {
  constexpr double gibibyte = 1 << 30;
  return command
      .add_option_function<double>(
          "--worker-memory", [&bytes](double gib) { bytes = static_cast<std::int64_t>(gib * gibibyte); },
          "GiB that " + who + " may take before its work is given up; 0: what there is")
      ->check(CLI::Range(0.0, 1e6))
      ->default_str(fmt::format("{:g}", static_cast<double>(bytes) / gibibyte));
}

using Chosen = std::function<int()>;

// One row a command, in the order of the help page.
#define TESSERA_COMMANDS(row) \
  row(tokenize) row(train) row(plan) row(report) row(import) row(consolidate) row(generate) row(evaluate) row(inspect) row(verify) row(deck)

#define TESSERA_DECLARE_COMMAND(name) void add_##name(CLI::App& app, Chosen& chosen);
TESSERA_COMMANDS(TESSERA_DECLARE_COMMAND)
#undef TESSERA_DECLARE_COMMAND

/// Adds every command to `app`; parsing sets `chosen`.
inline void add_commands(CLI::App& app, Chosen& chosen) {
#define TESSERA_ADD_COMMAND(name) add_##name(app, chosen);
  TESSERA_COMMANDS(TESSERA_ADD_COMMAND)
#undef TESSERA_ADD_COMMAND
}

/// Program, compiler and library versions, one a line.
std::string version_text();

}  // namespace tessera
