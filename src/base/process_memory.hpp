// What the system says that this process has of the machine's memory.
#pragma once
#include <cstdint>
#include <optional>

namespace tessera {

struct ProcessMemory {
  std::int64_t resident = 0;  ///< bytes now; what it shares with other processes included
  std::int64_t most = 0;      ///< since it began
};
/// Nothing where /proc says nothing.
std::optional<ProcessMemory> process_memory();

}  // namespace tessera
