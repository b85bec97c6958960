#include "commands/program.hpp"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>

#include "base/check.hpp"
#include "base/current_error.hpp"
#include "base/end_report.hpp"
#include "base/log.hpp"
#include "base/open_files.hpp"
#include "commands/commands.hpp"
#include "deck/environment.hpp"
#include "topology/failure/leave.hpp"
#include "topology/failure/signals.hpp"
#include "topology/failure/start.hpp"

namespace tessera {
namespace {

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

/// What std::terminate calls: an exception that nobody caught, on any thread, ends the process with a message and a documented status.
[[noreturn]] void end_by_uncaught_exception() {
  static std::atomic<bool> ending{false};
  if (ending.exchange(true)) std::abort();  // an error of the lines below, or a second thread
  const Error error =
      std::current_exception()
          ? current_error()
          : Error(ExitCode::internal, "the program ended without an exception. This is a defect of Tessera; please report it.");
  log_line(LogLevel::error, error.what());
  report_end(static_cast<int>(error.code));
  leave_now(error.code);
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
  // 1. The command line.
  const CommandLine line = read_command_line(argc, argv);
  if (line.status) return *line.status;

  // 2. Signals: training alone has something to save.
  if (!line.trains) release_stop_signals();

  // 3. What a batch job prints is read weeks later, from many nodes in one file.
  if (environment("SLURM_JOB_ID") && !isatty(STDERR_FILENO)) {
    char host[256] = {};
    gethostname(host, sizeof host - 1);
    log_stamps(host);
  }

  // 4. The command, with as many open files as it may have. A file above the limit of `ulimit -f` is an error that says so, not a signal
  // that kills.
  std::signal(SIGXFSZ, SIG_IGN);
  raise_open_files();
  return run(line.chosen, line.trains);
}

}  // namespace

int run_program(int argc, char** argv) {
  std::set_terminate(end_by_uncaught_exception);
  if (const auto path = environment("TESSERA_STATUS_FILE")) prepare_end_report(*path);
  const int status = run_command_line(argc, argv);
  report_end(status);
  return status;
}

}  // namespace tessera
