#include "train/observe/run_notices.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/printable.hpp"

extern char** environ;

namespace tessera {
namespace {

// Reads lines from its standard input, a socket, and calls the command for each. It answers with the status and the words of a call that
// failed. Where the lines end without one of the run's end, that is the run's end.
constexpr const char* caller = R"sh(
limit=$1; command=$2; lost=$3; ended=
call() {
  words=$(printf '%s\n' "$1" | timeout -k 1 "$limit" /bin/sh -c "$command" 2>&1)
  status=$?
  [ $status = 0 ] || (printf '%s %.300s\n' "$status" "$(printf %s "$words" | tr '\n' ' ')" >&0)
}
while IFS= read -r line; do
  case $line in *'"event":"end"'*) ended=1 ;; esac
  call "$line"
done
[ -n "$ended" ] || call "${lost%\}},\"time\":$(date +%s)}"
)sh";

constexpr int status_of_timeout = 124, status_of_kill = 137;

/// Open here, and not for the process that is started: a launcher waits until all ends of its sockets are closed.
std::vector<int> files_to_close() {
  std::vector<int> files;
  std::error_code error;
  for (std::filesystem::directory_iterator at("/proc/self/fd", error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    int file = 0;
    if (std::from_chars(name.data(), name.data() + name.size(), file).ec == std::errc() && file > 2) files.push_back(file);
  }
  return files;
}

/// A session of its own, so that no signal to the run's group reaches it; `channel` as its standard input, and nothing else open. An errno.
int spawn_caller(pid_t& process, int channel, std::vector<std::string> words) {
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_adddup2(&files, channel, 0);
  for (const int output : {1, 2}) posix_spawn_file_actions_addopen(&files, output, "/dev/null", O_WRONLY, 0);
  for (const int file : files_to_close()) posix_spawn_file_actions_addclose(&files, file);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none, all;
  sigemptyset(&none), sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSID);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int fault = posix_spawn(&process, arguments[0], &files, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  return fault;
}

/// "17 words" of a call as a sentence.
std::string describe_failure(const std::string& line, std::int64_t limit) {
  int status = 0;
  std::from_chars(line.data(), line.data() + line.size(), status);
  const std::size_t space = line.find(' ');
  const std::string words = space == line.npos ? "" : line.substr(space + 1);
  const std::string how = status == status_of_timeout || status == status_of_kill
                              ? fmt::format("took longer than {} s (run.notify_limit)", limit)
                              : fmt::format("ended with status {}", status);
  return how + (words.empty() ? "" : ": " + printable(words));
}

}  // namespace

RunNotices::~RunNotices() {
  if (socket_ >= 0) close(socket_);
  if (process_ > 0) waitpid(process_, nullptr, WNOHANG);  // what is under way ends by itself
}

void RunNotices::begin(const std::string& command, std::int64_t limit, Json run) {
  command_ = command, limit_ = limit, run_ = std::move(run);
  if (!command_.empty()) start();
}

void RunNotices::start() {
  std::array<int, 2> ends{};
  Json lost = run_;
  lost["event"] = "end";
  lost["reason"] = "killed";
  lost["text"] = "rank 0 ended without a message: it was killed, another rank ended the run, or its node was lost";
  int fault = 0;
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    fault = errno;
  } else {
    fault = spawn_caller(process_, ends[1],
                         {"/bin/sh", "-c", caller, "tessera-notify", std::to_string(limit_), command_, lost.dump(-1, BadText::replace)});
    close(ends[1]);
    socket_ = ends[0];
  }
  if (fault == 0) return;
  failed_ = true;
  warning("run.notify: /bin/sh cannot be started ({}), so no notice of this run is sent", std::strerror(fault));
}

void RunNotices::tell(std::string_view event, std::int64_t step, Json fields) {
  if (socket_ < 0 || ended_) return;
  Json told = run_;
  told["event"] = event;
  told["time"] = unix_seconds();
  told["step"] = step;
  told.update(fields);
  const std::string line = told.dump(-1, BadText::replace) + "\n";
  // A line that does not fit is of a command that hangs: the steps matter more.
  const ssize_t sent = send(socket_, line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (std::cmp_equal(sent, line.size())) return;
  if (sent >= 0) close(std::exchange(socket_, -1));  // half a line is none
  if (!std::exchange(failed_, true)) warning("run.notify: its process takes no more notices, so \"{}\" is not sent", event);
}

void RunNotices::look() {
  if (socket_ < 0) return;
  char buffer[512];
  for (ssize_t got = 0; (got = recv(socket_, buffer, sizeof buffer, MSG_DONTWAIT)) > 0;)
    said_.append(buffer, static_cast<std::size_t>(got));
  const std::size_t end = said_.find('\n');
  if (end == said_.npos) return;
  const std::string line = said_.substr(0, end);
  said_.erase(0, said_.rfind('\n') + 1);
  if (std::exchange(failed_, true)) return;
  warning("run.notify: `{}` {}. It is called again for the next notice; further failures are not reported", printable(command_),
          describe_failure(line, limit_));
}

void RunNotices::end(std::int64_t step, const std::string& reason, int status) {
  if (socket_ < 0 || ended_) return;
  tell("end", step, {{"reason", reason}, {"exit", status}});
  ended_ = true;
  wait_for_calls();
}

void RunNotices::wait_for_calls() {
  if (socket_ < 0) return;
  shutdown(socket_, SHUT_WR);
  const double last = now_seconds() + static_cast<double>(limit_) + 1.5;  // timeout -k adds one
  while (true) {
    const double left = last - now_seconds();
    pollfd watched{socket_, POLLIN, 0};
    if (left <= 0 || poll(&watched, 1, static_cast<int>(1e3 * left) + 1) == 0) {
      if (!std::exchange(failed_, true)) warning("run.notify: `{}` has not ended in time; the run does not wait for it", command_);
      return;
    }
    look();
    char next = 0;
    if (recv(socket_, &next, 1, MSG_DONTWAIT | MSG_PEEK) == 0) break;  // the process has ended
  }
  if (process_ > 0) waitpid(std::exchange(process_, 0), nullptr, 0);
}

}  // namespace tessera
