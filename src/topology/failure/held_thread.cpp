#include "topology/failure/held_thread.hpp"

#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

#include "base/clock.hpp"

namespace tessera {

HeldThread::HeldThread(pid_t thread, double deadline) : thread_(thread) {
  // Seized, not attached: no SIGSTOP is sent, so a thread that was stopped stays so, and one that ran goes on.
  if (ptrace(PTRACE_SEIZE, thread_, nullptr, nullptr) != 0 || ptrace(PTRACE_INTERRUPT, thread_, nullptr, nullptr) != 0) {
    error_ = errno;
    return;
  }
  int status = 0;
  pid_t seen = 0;
  while ((seen = waitpid(thread_, &status, __WALL | WNOHANG)) == 0 && now_seconds() < deadline) usleep(500);
  held_ = seen == thread_ && WIFSTOPPED(status);
  if (!held_) error_ = seen < 0 ? errno : seen == 0 ? ETIMEDOUT : ESRCH;
  if (held_ && status >> 16 != PTRACE_EVENT_STOP) signal_ = WSTOPSIG(status);
}

HeldThread::~HeldThread() {
  // Where the thread has not stood the kernel lets it go when this thread ends.
  if (held_) ptrace(PTRACE_DETACH, thread_, nullptr, reinterpret_cast<void*>(static_cast<std::intptr_t>(signal_)));
}

}  // namespace tessera
