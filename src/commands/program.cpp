#include "commands/program.hpp"

#include <unistd.h>

#include <csignal>
#include <cstdio>

#include "base/check.hpp"
#include "base/current_error.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "base/open_files.hpp"
#include "commands/commands.hpp"
#include "deck/environment.hpp"
#include "deck/hints.hpp"
#include "topology/failure/leave.hpp"
#include "topology/failure/signals.hpp"
#include "topology/failure/start.hpp"

namespace tessera {
namespace {

/// The innermost command that was understood.
const CLI::App& innermost(const CLI::App& app) {
  auto chosen = app.get_subcommands();
  return chosen.empty() ? app : innermost(*chosen.front());
}

/// "tessera deck check"
std::string path_of(const CLI::App& app) { return app.get_parent() ? path_of(*app.get_parent()) + " " + app.get_name() : app.get_name(); }

int usage_error(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App& at = innermost(app);
  std::string message = error.what();
  std::vector<std::string> names, extra = at.remaining();
  for (const CLI::App* c : at.get_subcommands([](const CLI::App*) { return true; })) names.push_back(c->get_name());
  if (!names.empty() && !extra.empty() && !extra.front().starts_with('-')) {
    std::vector<std::string_view> words(names.begin(), names.end());
    std::string_view near = nearest(extra.front(), words);
    message =
        fmt::format("{} is not a command of {}{}", extra.front(), path_of(at), near.empty() ? "" : fmt::format("; did you mean {}?", near));
  }
  log_line(LogLevel::error, fmt::format("{}\n  try: {} --help", message, path_of(at)));
  return static_cast<int>(ExitCode::usage);
}

int output_error() {
  log_line(LogLevel::error, "standard output could not be written; free space or print elsewhere");
  return static_cast<int>(ExitCode::storage);
}

/// Of a fault that comes before MPI is up: the launcher's word says which rank this is, and the ranks that wait for it in MPI are ended.
int end_by_fault(const Error& error, bool trains) {
  log_launch_identity();
  log_line(LogLevel::error, error.what());
  const int status = static_cast<int>(error.code);
  if (!trains || !launched_as_several()) return status;
  report_end(status);
  drain_standard_error();
  tell_launcher(status);
  return status;
}

int run(const Chosen& chosen, bool trains) {
  try {
    int status = chosen();
    // What was printed must have arrived: a full disk behind a redirection is a failure too.
    return std::fflush(stdout) == 0 && !std::ferror(stdout) ? status : output_error();
  } catch (const Error& error) {
    return end_by_fault(error, trains);
  } catch (const std::exception&) {
    if (std::ferror(stdout)) return output_error();
    return end_by_fault(current_error(), trains);
  }
}

int run_command_line(int argc, char** argv) {
  // 1. The commands and their options.
  CLI::App app("Tessera trains transformers from an input deck on MPI ranks.", "tessera");
  app.set_version_flag("--version", version_text);
  app.require_subcommand(1);
  app.footer("Example:\n  tessera deck check inputs/quickstart.toml\n\nEvery command has its own --help.");
  Chosen chosen;
  add_commands(app, chosen);

  // 2. The command line.
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version arrive as errors with status 0.
    return error.get_exit_code() == 0 ? app.exit(error) : usage_error(app, error);
  }

  // 3. Signals: training alone has something to save.
  if (!app.got_subcommand("train")) release_stop_signals();

  // 4. What a batch job prints is read weeks later, from many nodes in one file.
  if (environment("SLURM_JOB_ID") && !isatty(STDERR_FILENO)) {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    log_stamps(host);
  }

  // 5. The command, with as many open files as it may have. A file above the limit of `ulimit -f` is an error that says so, not a signal
  // that kills.
  std::signal(SIGXFSZ, SIG_IGN);
  raise_open_files();
  return run(chosen, app.got_subcommand("train"));
}

}  // namespace

int run_program(int argc, char** argv) {
  if (const auto path = environment("TESSERA_STATUS_FILE")) prepare_end_report(*path);
  const int status = run_command_line(argc, argv);
  report_end(status);
  return status;
}

}  // namespace tessera
