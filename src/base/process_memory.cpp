#include "base/process_memory.hpp"

#include <fstream>
#include <limits>
#include <string>

namespace tessera {

std::optional<ProcessMemory> process_memory() {
  constexpr std::int64_t kilo = 1024;
  ProcessMemory memory;
  std::ifstream status("/proc/self/status");
  std::string word;
  while (status >> word) {
    std::int64_t* of = word == "VmHWM:" ? &memory.most : word == "VmRSS:" ? &memory.resident : nullptr;
    if (of && status >> *of) *of *= kilo;
    status.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  if (memory.resident == 0 || memory.most < memory.resident) return std::nullopt;
  return memory;
}

}  // namespace tessera
