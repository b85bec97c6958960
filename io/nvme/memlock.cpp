#include "io/nvme/memlock.hpp"

#include <linux/capability.h>
#include <sys/resource.h>

#include <fstream>

#include "base/types.hpp"

namespace tessera::io {
namespace {

bool may_lock_everything() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (word == "CapEff:") {
      std::uint64_t held = 0;
      status >> std::hex >> held;
      return (held >> CAP_IPC_LOCK & 1) != 0;
    }
  return false;
}

}  // namespace

std::int64_t memlock_bytes() {
  rlimit limit;
  if (may_lock_everything() || ::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return -1;
  return static_cast<std::int64_t>(limit.rlim_cur);
}

std::string memlock_text() {
  const std::int64_t bytes = memlock_bytes();
  return bytes < 0 ? "everything" : human_bytes(static_cast<double>(bytes));
}

}  // namespace tessera::io
