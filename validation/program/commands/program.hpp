// Runs the program as a user does, and says what it printed and how much memory it took.
#pragma once
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "../../unit/scratch.hpp"

namespace tessera::test {

struct Finished {
  int status = -1;
  std::string out, err;
  std::int64_t peak_bytes = 0;  ///< of resident memory
  double cpu_seconds = 0;       ///< of all its threads
};

inline Finished run_program(const Scratch& scratch, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), TESSERA_PROGRAM);
  std::vector<char*> argv;
  for (auto& a : arguments) argv.push_back(a.data());
  argv.push_back(nullptr);
  const std::string out = scratch / "stdout", err = scratch / "stderr";
  const pid_t child = fork();
  if (child == 0) {
    const int o = open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), e = open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (o < 0 || e < 0 || dup2(o, 1) < 0 || dup2(e, 2) < 0) _exit(126);
    execv(argv[0], argv.data());
    _exit(127);
  }
  int status = 0;
  rusage used{};
  if (child < 0 || wait4(child, &status, 0, &used) != child) return {};
  auto seconds = [](const timeval& t) { return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec); };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(out), slurp(err), used.ru_maxrss * 1024,
          seconds(used.ru_utime) + seconds(used.ru_stime)};
}

}  // namespace tessera::test
