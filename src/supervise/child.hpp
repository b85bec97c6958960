// A launcher as a child process, and the signals that come to its parent.
#pragma once
#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// Holds SIGTERM, SIGINT, SIGUSR1 and SIGHUP, and those that tell of children, to be polled for. A SIGHUP that was ignored stays so.
class PolledSignals {
 public:
  PolledSignals();
  ~PolledSignals();
  PolledSignals(const PolledSignals&) = delete;
  PolledSignals& operator=(const PolledSignals&) = delete;
  int descriptor() const { return descriptor_; }
  /// One that has come and asks to stop; what is told of children is taken and passed over.
  std::optional<int> next() const;
  /// Returns after so many seconds, or where one may have come, or one of `others` can be read.
  void wait(double seconds, const std::vector<int>& others = {}) const;

 private:
  int descriptor_ = -1;
};

/// In a group of its own, so that a terminal's Ctrl-C comes to the parent alone. It is asked to end where this process ends, however that
/// does.
class LauncherProcess {
 public:
  /// What it inherits: the environment, with these values, but without what has an empty one; nothing to read. Where it is `heard`, its
  /// output and errors go through pipes. Throws Error(environment) where it cannot be started.
  LauncherProcess(std::vector<std::string> command, const std::vector<std::pair<std::string, std::string>>& environment, bool heard);
  /// Ends it and its group.
  ~LauncherProcess();
  LauncherProcess(const LauncherProcess&) = delete;
  LauncherProcess& operator=(const LauncherProcess&) = delete;

  /// 128 and the signal's number where one ended it; nothing while it runs.
  std::optional<int> status();
  void signal(int number) const;
  void kill_group() const;
  std::vector<int> pipes() const;
  /// Passes on what has come, and shows whole lines.
  void pass_on(const std::function<void(std::string_view)>& hear);

 private:
  struct Pipe {
    int from = -1, to = -1;
    std::string line = {};
  };
  pid_t process_ = 0;
  std::optional<int> status_;
  std::vector<Pipe> pipes_;
};

}  // namespace tessera
