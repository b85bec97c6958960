// Stacks of all threads of another process of this node, also of one that is stopped.
#pragma once
#include <sys/types.h>

#include <string>

namespace tessera {

/// Lines for people, each after a line break: the threads with their states, and their stacks where this build has libdw and the system
/// allows to look (ptrace). Each thread is held for some milliseconds and goes on as it was: one that was stopped stays stopped. Returns
/// after about `seconds`, with what it has.
std::string read_stacks(pid_t process, double seconds);

}  // namespace tessera
