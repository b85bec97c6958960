// How much memory this process may pin: registered buffers count against it.
#pragma once
#include <cstdint>
#include <string>

namespace tessera::io {

/// Bytes of `ulimit -l`; -1 where nothing limits this process (no limit, or CAP_IPC_LOCK).
std::int64_t memlock_bytes();
/// "8.00 MiB", "everything"
std::string memlock_text();

}  // namespace tessera::io
