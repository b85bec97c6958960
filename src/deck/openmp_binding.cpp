#include "deck/openmp_binding.hpp"

#include <sched.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <string_view>

namespace tessera {
namespace {

constexpr std::array<const char*, 3> bindings = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY"};
constexpr std::array<const char*, 4> sizes = {"PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PALS_LOCAL_SIZE"};
std::array<bool, bindings.size()> left = {};

/// The value of "NAME=value", or null.
const char* value_of(const char* entry, const char* name) {
  const std::size_t length = std::strlen(name);
  return std::strncmp(entry, name, length) == 0 && entry[length] == '=' ? entry + length + 1 : nullptr;
}

bool of_several_ranks(char* const* environment) {
  for (; *environment; ++environment)
    for (const char* name : sizes)
      if (const char* value = value_of(*environment, name); value && std::strcmp(value, "1") != 0 && *value != 0) return true;
  return false;
}

}  // namespace

void leave_openmp_binding(char** environment, bool whole_node) noexcept {
  left = {};
  if (!environment || !whole_node || !of_several_ranks(environment)) return;
  char** to = environment;
  for (char** from = environment; *from; ++from) {
    bool stays = true;
    for (std::size_t i = 0; i < bindings.size(); ++i)
      if (const char* value = value_of(*from, bindings[i]); value && std::strcmp(value, "false") != 0) left[i] = true, stays = false;
    if (stays) *to++ = *from;
  }
  *to = nullptr;
}

void leave_openmp_binding_at_start(int, char**, char** environment) noexcept {
  cpu_set_t set;
  const bool whole_node = sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= sysconf(_SC_NPROCESSORS_ONLN);
  leave_openmp_binding(environment, whole_node);
}

std::string left_openmp_binding() {
  std::string names;
  for (std::size_t i = 0; i < bindings.size(); ++i)
    if (left[i]) names += std::string(names.empty() ? "" : " and ") + bindings[i];
  return names;
}

}  // namespace tessera
