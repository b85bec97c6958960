#include "io/tokenizer/child.hpp"

#include <fcntl.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "base/check.hpp"
#include "base/types.hpp"

extern char** environ;

namespace tessera::io {
namespace {

/// Signals as a program expects them at its start, whatever this one has made of them; three open files; and a group of processes of its
/// own, since a program may be a script that starts another.
class SpawnPlan {
 public:
  SpawnPlan(int channel, int words) {
    posix_spawn_file_actions_init(&files_);
    posix_spawn_file_actions_adddup2(&files_, channel, 0);
    posix_spawn_file_actions_adddup2(&files_, words, 1);
    posix_spawn_file_actions_adddup2(&files_, words, 2);
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none), sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
    posix_spawnattr_setpgroup(&attributes_, 0);
  }
  ~SpawnPlan() { posix_spawnattr_destroy(&attributes_), posix_spawn_file_actions_destroy(&files_); }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  int start(pid_t& process, std::vector<std::string>& command) const {
    std::vector<char*> arguments;
    for (std::string& word : command) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    return posix_spawnp(&process, arguments[0], &files_, &attributes_, arguments.data(), environ);
  }

 private:
  posix_spawn_file_actions_t files_;
  posix_spawnattr_t attributes_;
};

}  // namespace

Child::Child(std::vector<std::string> command, std::int64_t memory)
    : name_(command.at(0)), words_(PosixFile::in_memory("what " + name_ + " says")), memory_(memory) {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0)
    fail(ExitCode::environment, "cannot start {}: no socket: {}", name_, std::strerror(errno));
  const int words = open(words_.link_path().c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const int fault = words < 0 ? errno : SpawnPlan(ends[1], words).start(process_, command);
  if (words >= 0) close(words);
  close(ends[1]);
  if (fault != 0) {
    close(ends[0]);
    fail(ExitCode::environment, "cannot start {}: {}", name_, std::strerror(fault));
  }
  socket_ = ends[0];
}

Child::~Child() {
  close(socket_);
  end();  // it has nothing that must be put in order, and may be in the middle of a long answer
}

int Child::end() {
  const pid_t process = std::exchange(process_, 0);
  if (process <= 0) return 0;  // kill() takes what is no process for many
  int status = 0;
  kill(-process, SIGKILL);  // its group
  while (waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

std::string Child::last_words(const std::string& before) const {
  std::string words(static_cast<std::size_t>(words_.size()), '\0');
  words.resize(words_.read(0, words.data(), words.size()));
  if (words.size() > 4000) words = "..." + words.substr(words.size() - 4000);
  while (!words.empty() && words.back() == '\n') words.pop_back();
  return words.empty() ? "" : before + words;
}

void Child::fail_ended() {
  if (process_ <= 0) fail(ExitCode::environment, "{} had ended before it was asked again", name_);
  const int status = end();  // also where it has closed its end of the socket and goes on
  const std::string limit =
      memory_ > 0 ? fmt::format(" (it may take {} of memory: --worker-memory)", human_bytes(static_cast<double>(memory_))) : "";
  // A script that stands before the program says 128 and the signal.
  const std::string how = WIFEXITED(status)
                              ? fmt::format("ended with status {}{}", WEXITSTATUS(status), WEXITSTATUS(status) > 128 ? limit : "")
                          : WTERMSIG(status) == SIGKILL ? "was killed, or closed its end (is there memory enough?)"
                                                        : fmt::format("ended by signal {}{}", WTERMSIG(status), limit);
  fail(ExitCode::environment, "{} {} before it had answered{}", name_, how, last_words(":\n"));
}

void Child::fail_silent() {
  const pid_t process = process_;
  end();
  fail(ExitCode::environment,
       "{} (process {}) has not answered for {} s and was ended. Check whether this machine has free memory, and whether the disk of that "
       "Python's packages answers; then run again{}",
       name_, process, patience_.count(), last_words(". Its output:\n"));
}

void Child::set_patience(std::chrono::seconds patience) {
  if (patience == patience_) return;
  patience_ = patience;
  const timeval limit{.tv_sec = patience.count(), .tv_usec = 0};
  for (const int direction : {SO_RCVTIMEO, SO_SNDTIMEO})
    if (setsockopt(socket_, SOL_SOCKET, direction, &limit, sizeof limit) != 0)
      fail(ExitCode::environment, "cannot limit how long {} is waited for: {}", name_, std::strerror(errno));
}

void Child::cut() { shutdown(socket_, SHUT_RDWR); }

void Child::send(const void* data, std::size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t sent = ::send(socket_, at, bytes, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) fail_silent();
    if (sent < 0) fail_ended();
    at += sent, bytes -= static_cast<std::size_t>(sent);
  }
}

void Child::receive(void* data, std::size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = recv(socket_, at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) fail_silent();
    if (got <= 0) fail_ended();
    at += got, bytes -= static_cast<std::size_t>(got);
  }
}

}  // namespace tessera::io
