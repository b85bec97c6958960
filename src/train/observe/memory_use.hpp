// What rank 0 has of memory, beside what was planned.
#pragma once
#include <string>

#include "train/observe/observer.hpp"

namespace tessera {

/// Bytes by name: the process's now and at most, of a GPU those in use by anyone, and the arenas of each tier, which were planned.
io::NamedNumbers memory_in_use(const RunParts& run);
/// A table of the arenas by what a step does, and a line of the process; each line after a line break.
std::string print_memory_in_use(const RunParts& run);

}  // namespace tessera
