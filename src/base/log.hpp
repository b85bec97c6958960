// Lines for people, on standard error, where rank 0 speaks and a rank that fails speaks for itself; and what commands print. All of it is
// made printable here, since names in files may hold what a terminal takes for commands.
#pragma once
#include <fmt/core.h>

#include <string>

namespace tessera {

enum class LogLevel { debug, info, warning, error };

/// Which rank this process is, for the prefix of warnings and errors, and whether it may print info lines. Before MPI starts: rank 0 of 1.
/// `host` stands beside the rank where ranks are on several nodes; else it is empty.
void log_identity(int rank, int ranks, const std::string& host = "");
/// Whether somebody has said which rank this is.
bool log_knows_rank();
/// From now on every message begins with the time and this host, as in the log of a job that runs for weeks.
void log_stamps(const std::string& host);
/// As at the start of the process: no rank, no stamps, no file that the log goes on in. For a process that runs another command now.
void log_anew();
/// Where standard error can no longer be written (whoever read it has ended), the log goes on at the end of this file, which says so. Until
/// then the file is not touched. Empty: what is said then is lost.
void log_outlives_its_reader(const std::string& path);
void log_line(LogLevel level, const std::string& message);

/// On standard output, as it stands: the end of a line is the caller's.
void put_text(const std::string& text);
template <class... Args>
void put(fmt::format_string<Args...> format, Args&&... args) {
  put_text(fmt::vformat(format, fmt::make_format_args(args...)));
}

/// Rank 0 only.
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::info, fmt::vformat(format, fmt::make_format_args(args...)));
}
template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::debug, fmt::vformat(format, fmt::make_format_args(args...)));
}
/// Any rank.
template <class... Args>
void warning(fmt::format_string<Args...> format, Args&&... args) {
  log_line(LogLevel::warning, fmt::vformat(format, fmt::make_format_args(args...)));
}

}  // namespace tessera
