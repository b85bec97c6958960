#include "supervise/child.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/check.hpp"
#include "base/clock.hpp"

extern char** environ;

namespace tessera {
namespace {

constexpr double patience_at_end = 10, end_look_seconds = 0.01;

[[noreturn]] void fail_to_start(const std::string& program, int error) {
  fail(ExitCode::environment, "cannot start {}: {}; --launcher \"PROGRAM OPTIONS\" names another launcher", program, std::strerror(error));
}

/// Of this process, with what is set, and without what is set to nothing.
std::vector<std::string> environment_with(const std::vector<std::pair<std::string, std::string>>& changes) {
  std::vector<std::string> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    const std::string_view text = *variable, name = text.substr(0, text.find('='));
    if (std::none_of(changes.begin(), changes.end(), [&](const auto& change) { return change.first == name; }))
      variables.emplace_back(text);
  }
  for (const auto& [name, value] : changes)
    if (!value.empty()) variables.push_back(name + "=" + value);
  return variables;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

/// Signals as a program expects them at its start; those that were ignored at ours stay so.
void become_launcher(pid_t parent, const std::array<int, 2>& outputs) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(0);  // it ended before it could be noticed
  const int nothing = open("/dev/null", O_RDONLY);
  if (nothing >= 0) dup2(nothing, STDIN_FILENO);
  if (outputs[0] >= 0) dup2(outputs[0], STDOUT_FILENO);
  if (outputs[1] >= 0) dup2(outputs[1], STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL), std::signal(SIGXFSZ, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

/// All of it, where there is a reader.
void write_all(int to, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(to, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN) {
      pollfd ready{.fd = to, .events = POLLOUT, .revents = 0};
      poll(&ready, 1, -1);
      continue;
    }
    if (written < 0) return;  // who reads the log has ended; the run has not
    text.remove_prefix(static_cast<std::size_t>(written));
  }
}

}  // namespace

PolledSignals::PolledSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGCHLD}) sigaddset(&set, number);
  struct sigaction action = {};
  if (sigaction(SIGHUP, nullptr, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&set, SIGHUP);
  sigprocmask(SIG_BLOCK, &set, nullptr);
  descriptor_ = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
  if (descriptor_ < 0) fail(ExitCode::environment, "cannot wait for signals: {}", std::strerror(errno));
}

PolledSignals::~PolledSignals() { close(descriptor_); }

std::optional<int> PolledSignals::next() const {
  signalfd_siginfo info = {};
  while (read(descriptor_, &info, sizeof info) == static_cast<ssize_t>(sizeof info))
    if (info.ssi_signo != SIGCHLD) return static_cast<int>(info.ssi_signo);
  return std::nullopt;
}

void PolledSignals::wait(double seconds, const std::vector<int>& others) const {
  std::vector<pollfd> ready{{.fd = descriptor_, .events = POLLIN, .revents = 0}};
  for (const int other : others) ready.push_back({.fd = other, .events = POLLIN, .revents = 0});
  poll(ready.data(), ready.size(), static_cast<int>(std::max(0.0, seconds) * 1000) + 1);
}

LauncherProcess::LauncherProcess(std::vector<std::string> command, const std::vector<std::pair<std::string, std::string>>& environment,
                                 bool heard) {
  std::vector<std::string> variables = environment_with(environment);
  const std::vector<char*> arguments = pointers_to(command), values = pointers_to(variables);
  std::array<int, 2> told{-1, -1}, outputs{-1, -1};  // `told`: why it cannot be started; closed by its start
  if (pipe2(told.data(), O_CLOEXEC) != 0) fail_to_start(command.at(0), errno);
  const int nowhere = heard ? -1 : open("/dev/null", O_WRONLY | O_CLOEXEC);
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    std::array<int, 2> ends{nowhere, nowhere};
    if (heard && pipe2(ends.data(), O_CLOEXEC) != 0) fail_to_start(command.at(0), errno);
    outputs[i] = ends[1];
    if (!heard) continue;
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    pipes_.push_back({.from = ends[0], .to = i == 0 ? STDOUT_FILENO : STDERR_FILENO});
  }
  const pid_t parent = getpid();
  process_ = fork();
  if (process_ == 0) {
    become_launcher(parent, outputs);
    execvpe(arguments[0], arguments.data(), values.data());
    const int error = errno;
    if (write(told[1], &error, sizeof error) < 0) _exit(126);
    _exit(127);
  }
  const int fork_error = errno;
  close(told[1]);
  if (nowhere >= 0) close(nowhere);
  for (const int output : outputs)
    if (heard) close(output);
  int error = process_ < 0 ? fork_error : 0;
  while (process_ > 0 && read(told[0], &error, sizeof error) < 0 && errno == EINTR) {
  }
  close(told[0]);
  if (error == 0) return;
  for (const Pipe& pipe : pipes_) close(pipe.from);
  if (process_ > 0) waitpid(process_, nullptr, 0);
  fail_to_start(command.at(0), error);
}

LauncherProcess::~LauncherProcess() {
  if (!status()) {
    signal(SIGTERM);
    for (const double end = now_seconds() + patience_at_end; !status() && now_seconds() < end;)
      usleep(static_cast<useconds_t>(end_look_seconds * 1e6));
  }
  kill_group();
  while (!status_ && !status()) usleep(static_cast<useconds_t>(end_look_seconds * 1e6));
  for (const Pipe& pipe : pipes_) close(pipe.from);
}

std::optional<int> LauncherProcess::status() {
  int how = 0;
  if (!status_ && waitpid(process_, &how, WNOHANG) == process_)
    status_ = WIFEXITED(how) ? WEXITSTATUS(how) : 128 + (WIFSIGNALED(how) ? WTERMSIG(how) : 0);
  return status_;
}

void LauncherProcess::signal(int number) const {
  if (!status_) kill(process_, number);
}

void LauncherProcess::kill_group() const { kill(-process_, SIGKILL); }

std::vector<int> LauncherProcess::pipes() const {
  std::vector<int> open;
  for (const Pipe& pipe : pipes_)
    if (pipe.from >= 0) open.push_back(pipe.from);
  return open;
}

void LauncherProcess::pass_on(const std::function<void(std::string_view)>& hear) {
  std::array<char, 65536> bytes;
  for (Pipe& pipe : pipes_) {
    while (pipe.from >= 0) {
      const ssize_t got = read(pipe.from, bytes.data(), bytes.size());
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && errno == EAGAIN) break;
      if (got <= 0) {
        close(pipe.from), pipe.from = -1;
        break;
      }
      const std::string_view text(bytes.data(), static_cast<std::size_t>(got));
      write_all(pipe.to, text);
      pipe.line += text;
      std::size_t begin = 0;
      for (std::size_t end = 0; (end = pipe.line.find('\n', begin)) != std::string::npos; begin = end + 1)
        hear(std::string_view(pipe.line).substr(begin, end - begin));
      pipe.line.erase(0, begin);
    }
  }
}

}  // namespace tessera
